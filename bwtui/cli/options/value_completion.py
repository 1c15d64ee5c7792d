"""Shell completion of option values, without large imports."""

from collections.abc import Callable

import click
from click.shell_completion import CompletionItem

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def one_of(*words: str) -> Completer:
    """Return a completer for ``words``."""

    def complete(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(word) for word in words if word.startswith(incomplete)]

    return complete


def profiles(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the profiles of bwtui.toml; an invalid file has none."""
    from bwtui.config import file_paths
    from bwtui.config_file import read_file
    from bwtui.errors import BwtuiError

    names: set[str] = set()
    for path in file_paths():
        try:
            names |= set(read_file(path).profiles) if path.is_file() else set()
        except BwtuiError:
            continue
    return [CompletionItem(name) for name in sorted(names) if name.startswith(incomplete)]


def relays(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the names of running relays; for `status` also those that have ended.

    Their locks show whether they run: a request to one that hangs would block the shell.
    """
    from bwtui.relay.process.lock import is_held
    from bwtui.state_folder import relay_names

    names = (name for name in relay_names() if name.startswith(incomplete))
    return [CompletionItem(name) for name in names if context.info_name == "status" or is_held(name)]
