"""The choices as one, from all layers of settings."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from textual.theme import Theme

from bwtui.config import Config
from bwtui.tui.choices.keys import chosen_keys
from bwtui.tui.choices.themes import chosen_theme


@dataclass(frozen=True)
class Choices:
    """How the screens are to be."""

    #: Nothing can be changed from them.
    readonly: bool = False
    #: Other keys than the actions' own, by Textual's names of the actions.
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    #: The theme to begin with; None: the session's.
    theme: Theme | None = None


def chosen(config: Config) -> Choices:
    """Return what the settings say of the screens. Raises UsageError."""
    return Choices(
        bool(config.values["readonly"].value),
        chosen_keys(config.screens["keys"]),
        chosen_theme(config.screens["theme"]),
    )
