"""Generate man pages of every command from click's information, and completions for three shells.

``python -m bwtui.cli.output.man_pages DIR`` writes them; packaging/share contains them, and a test compares.
"""

import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from bwtui import __version__
from bwtui.cli.main import CONTEXT, cli

#: The date of the pages: it is changed with them, and does not depend on the day of generation.
DATE = "2026-11-24"
_WIDTH = 70
#: The roff forms of typewriter characters, so that a command can be copied from a page.
_ROFF = {"\\": r"\e", "-": r"\-", "'": r"\(aq", "`": r"\(ga", "^": r"\(ha", "~": r"\(ti"}
_WHERE_COMPLETIONS = {
    "bash": "bash-completion/completions/bwtui",
    "zsh": "zsh/site-functions/_bwtui",
    "fish": "fish/vendor_completions.d/bwtui.fish",
}
_FILES = (
    ("./bwtui.toml", "Settings of the working folder; see bwtui config."),
    ("~/.config/bwtui/bwtui.toml", "Settings of the user, which the former overrules."),
    (
        "~/.local/state/bwtui/NAME/",
        "What a relay remembers, its log and its dead letters; or $BWTUI_STATE_HOME.",
    ),
)
_EXIT_CODES = (
    *(("0", "Fine."), ("1", "Differences were found."), ("2", "Usage, or any other error.")),
    *(("3", "Indeterminate."), ("4", "Connection or authentication."), ("5", "The slot is lost.")),
    *(("6", "A recording is damaged, or unfinished after a kill."), ("130", "Interrupted.")),
)


def pages() -> dict[str, str]:
    """Return every man page by its file name."""
    return {f"{context.command_path.replace(' ', '-')}.1": _page(context) for context in _contexts(_root())}


def completions() -> dict[str, str]:
    """Return the completion scripts by their path below ``share``."""
    scripts = {}
    for shell, path in _WHERE_COMPLETIONS.items():
        kind = get_completion_class(shell)
        assert kind is not None
        completer = kind(cli, {}, "bwtui", "_BWTUI_COMPLETE")
        scripts[path] = completer.source_template % completer.source_vars()
    return scripts


def shared() -> dict[str, str]:
    """Return all files by their path below ``share``."""
    return {f"man/man1/{name}": text for name, text in pages().items()} | completions()


def _root() -> click.Context:
    return click.Context(cli, info_name="bwtui", **CONTEXT)


def _contexts(context: click.Context) -> Iterator[click.Context]:
    """Yield the context of a command, and of all its subcommands that are not hidden."""
    yield context
    for command in _below(context):
        yield from _contexts(click.Context(command, parent=context, info_name=command.name))


def _below(context: click.Context) -> list[click.Command]:
    if not isinstance(context.command, click.Group):
        return []
    found = [context.command.get_command(context, name) for name in context.command.list_commands(context)]
    return [command for command in found if command is not None and not command.hidden]


def _page(context: click.Context) -> str:
    command = context.command
    path = context.command_path
    name = path.replace(" ", "-")
    summary = (command.help or "").replace("\b", "").strip().split("\n\n")[0]
    lines = [
        r".\" Made by make man from what the command itself says.",
        f'.TH {_text(name.upper())} 1 "{DATE}" "bwtui {__version__}" "bwtui"',
        ".SH NAME",
        rf"{_text(name)} \- {_text(' '.join(summary.split()).rstrip('.'))}",
        ".SH SYNOPSIS",
        rf"\fB{_text(path)}\fR {_text(' '.join(command.collect_usage_pieces(context)))}",
        ".SH DESCRIPTION",
        *_prose(command.help or ""),
        *_section("COMMANDS", _commands(context)),
        *_section("OPTIONS", _options(context)),
    ]
    if context.parent is None:
        lines += _section("FILES", _FILES) + _section("EXIT STATUS", _EXIT_CODES)
    lines += _epilog(command.epilog or "")
    return "\n".join([*lines, *_see_also(context)]) + "\n"


def _commands(context: click.Context) -> list[tuple[str, str]]:
    return [(f"{c.name}", c.get_short_help_str(limit=200)) for c in _below(context)]


def _options(context: click.Context) -> list[tuple[str, str]]:
    options = [one for one in context.command.get_params(context) if isinstance(one, click.Option)]
    return [record for option in options if (record := option.get_help_record(context)) is not None]


def _section(title: str, entries: Sequence[tuple[str, str]]) -> list[str]:
    lines = [f".SH {title}"] if entries else []
    for term, text in entries:
        lines += [".TP", rf"\fB{_text(term)}\fR", *_wrapped(text)]
    return lines


def _epilog(epilog: str) -> list[str]:
    r"""Return the sections of an epilog, examples and notes; paragraphs that begin with \b keep their
    lines.
    """
    title, rest = "NOTES", epilog.strip("\n")
    if rest.lstrip("\b\n").startswith("Examples:"):
        title, rest = "EXAMPLES", rest.replace("Examples:\n", "", 1)
    return [f".SH {title}", *_prose(rest)] if rest.strip("\b\n ") else []


def _prose(text: str) -> list[str]:
    lines: list[str] = []
    for number, paragraph in enumerate(filter(None, textwrap.dedent(text).strip("\n").split("\n\n"))):
        if number:
            lines.append(".PP")
        first, *others = paragraph.strip("\n").split("\n")
        if first.strip() == "\b":
            lines += [".nf", *map(_text, textwrap.dedent("\n".join(others)).split("\n")), ".fi"]
        else:
            lines += _wrapped(paragraph)
    return lines


def _see_also(context: click.Context) -> list[str]:
    others = [context.parent.command_path] if context.parent is not None else []
    others += [f"{context.command_path} {command.name}" for command in _below(context)]
    named = [rf"\fB{_text(other.replace(' ', '-'))}\fR(1)" for other in others]
    return [".SH SEE ALSO", *(f"{one}," for one in named[:-1]), named[-1]] if named else []


def _wrapped(text: str) -> list[str]:
    joined = " ".join(text.split())
    return [_text(line) for line in textwrap.wrap(joined, _WIDTH, break_on_hyphens=False)]


def _text(text: str) -> str:
    """Return a line without special meaning in roff: only ASCII, and no request at its beginning."""
    written = "".join(
        _ROFF.get(letter, letter if letter.isascii() else rf"\[u{ord(letter):04X}]") for letter in text
    )
    return rf"\&{written}" if written.startswith(".") else written


def main(folder: Path) -> None:
    """Write all files into ``folder``, replacing the existing ones."""
    for page in folder.glob("man/man1/*.1"):
        page.unlink()
    for name, text in shared().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="ascii")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
