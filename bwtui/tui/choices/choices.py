"""The user's settings of the screens, merged from all layers of configuration."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from textual.theme import Theme

from bwtui.config import Config
from bwtui.tui.choices.keys import chosen_keys
from bwtui.tui.choices.themes import chosen_theme


@dataclass(frozen=True)
class Choices:
    """The user's settings of the screens."""

    #: The screens are read-only.
    readonly: bool = False
    #: Keys that replace the default ones, by Textual's names of the actions.
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    #: The theme to start with; None: the session's.
    theme: Theme | None = None


def chosen(config: Config) -> Choices:
    """Return the settings of the screens from the configuration. Raises UsageError."""
    return Choices(
        bool(config.values["readonly"].value),
        chosen_keys(config.screens["keys"]),
        chosen_theme(config.screens["theme"]),
    )
