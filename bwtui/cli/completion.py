"""``bwtui completion``: print the script for a shell to complete bwtui's commands and options."""

import click
from click.shell_completion import get_completion_class

from bwtui.console import say_verbatim

_EPILOG = """\b
Examples:
  source <(bwtui completion bash)                                       current bash session
  bwtui completion zsh > ~/.zfunc/_bwtui                                zsh, with ~/.zfunc in fpath
  bwtui completion fish > ~/.config/fish/completions/bwtui.fish
"""


@click.command(epilog=_EPILOG)
@click.argument("shell", metavar="SHELL", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for SHELL: bash, zsh or fish."""
    from bwtui.cli.main import cli

    kind = get_completion_class(shell)
    assert kind is not None
    completer = kind(cli, {}, "bwtui", "_BWTUI_COMPLETE")
    # Not source(), which looks for a bash on this machine: the script may be for a different one.
    say_verbatim(completer.source_template % completer.source_vars())
