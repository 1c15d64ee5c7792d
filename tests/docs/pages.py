"""The fenced blocks of the documentation, and their commands with the output that the page shows."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = {path.name: path for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))}
#: Languages of blocks that a reader takes for commands.
SHELL = {"", "sh", "bash", "console"}

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_HEREDOC = re.compile(r"<<'?(\w+)'?$")


@dataclass(frozen=True)
class Block:
    """A fenced block."""

    page: str
    language: str
    text: str

    @property
    def first(self) -> str:
        """Return the first line, which identifies the block."""
        return self.text.partition("\n")[0]


@dataclass(frozen=True)
class Command:
    """A command, and the output that the page shows; "" if it shows none."""

    typed: str
    shown: str = ""


def blocks(page: str) -> list[Block]:
    """Return the blocks of a page, in order."""
    return blocks_in(PAGES[page].read_text(), page)


def blocks_in(markdown: str, page: str = "") -> list[Block]:
    """Return the blocks of a text, in order."""
    return [Block(page, language, text) for language, text in _BLOCK.findall(markdown)]


def commands(block: Block) -> list[Command]:
    """Return the commands of a block: the lines with prompts if it has any, else each line."""
    text = re.sub(r"\\\n\s*", " ", block.text)
    if "$ " not in {line[:2] for line in text.splitlines()}:
        # A comment is for the reader of the page.
        lines = (re.sub(r"(^|\s+)#\s.*", "", line).strip() for line in text.splitlines())
        return [Command(line) for line in lines if line]
    found: list[tuple[list[str], list[str]]] = []
    until = ""
    for line in text.splitlines():
        if until:
            found[-1][0].append(line)
            until = "" if line == until else until
        elif line.startswith("$ "):
            found.append(([line[2:]], []))
            match = _HEREDOC.search(line)
            until = match[1] if match else ""
        else:
            found[-1][1].append(line)
    return [Command("\n".join(typed), "\n".join(shown)) for typed, shown in found]


# -- comparing the shown output with the actual one ----------------------------------------------------------

_NUMBER = re.compile(r"\b[0-9A-F]+/[0-9A-F]+\b|\d[\d,.:]*")
#: The units of ``bwtui.model.number_format``; long durations have two.
_UNIT = re.compile(r"N (?:d N h|h N m|m N s|kB|MB|GB|TB|B|ms|s)\b")


def plain(text: str) -> str:
    """Return a text with normalized numbers, units, LSNs and column widths."""
    return " ".join(_UNIT.sub("N U", _NUMBER.sub("N", text)).split())


def missing(shown: str, said: str, varies: tuple[str, ...] = ()) -> list[str]:
    """Return the shown lines that are missing in the actual output.

    "…" in a line matches any text. ``varies`` are expressions for words that differ in every run.
    """
    got, wanted = plain(said), [plain(line) for line in shown.splitlines()]
    for expression in varies:
        got = re.sub(expression, "…", got)
        wanted = [re.sub(expression, "…", line) for line in wanted]
    return [line for line in wanted if line and not re.search(_pattern(line), got)]


def _pattern(line: str) -> str:
    return ".*".join(re.escape(part.strip()) for part in line.split("…"))
