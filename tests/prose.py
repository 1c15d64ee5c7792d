"""Find turns of phrase that need a second reading, in documentation, docstrings, comments and messages.

``python -m tests.prose`` is part of ``make check``. It prints the density of each kind of text, in matches
per 1,000 words, and fails where one exceeds its limit. ``--list`` prints every match with the words to use
instead. A match is a place to read again, not always a fault, so the limits are not zero.
"""

# ruff: noqa: E501

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
#: Kind of text → maximum number of matches per 1,000 words. Lower a limit when its texts have become better.
LIMITS = {"documentation": 0.5, "docstrings and comments": 0.5, "messages": 0.5}
#: Expression → what to write instead.
RULES = {
    r"\b(is|are|was|were|be|been|being) told\b|\b(tells?|told) (of|about)\b|\bis to be told\b": "reported, logged, shown",
    r"\b(is|are|was|were|be) said\b|\bhas said\b|\bwhat (is|was|has been) said\b": "the name of the message or event",
    r"\bwhom\b|\bwhoever\b": "what, which service, blocked on",
    r"\bnobody\b": "no client, no process, unused",
    r"(^|[.;:] )Of (a|an|the|all|each|those|these|what|which|its|two|several|that)\b": "the subject first",
    r"^(What|That|Whether|How|Where|So) (is|was|are|were|it|has|had|have|comes|came|goes|went|they|the|a|an|some|one|much"
    r"|many|long)\b": "a noun: the status, the limit",
    r"\bso (many|much|long|often)\b(?! (as|that))": "number of, maximum, timeout of",
    r"(?<!there )(?<!There )\b(is|are|was|were) no (?!longer|more|other than|such file|one\b)[a-z]+": "is not a",
    r"\bbehind (it|that|them|this|each|the (last|first|one|others?|message|row|commit|transaction|record|snapshot|stream"
    r"|end|begin))\b": "after",
    r"\bbeside\b": "alongside, next to, in addition to",
    r"\banew\b": "again, from scratch, recreated",
    r"\bby (itself|themselves|himself)\b": "automatically, on its own, alone",
    r"\bmend(s|ed|ing)?\b": "fix, repair",
    r"\b(is|are|was|were) (another|other)\b(?! (process|relay|server))|\ban? other\b": "different, changed",
    r"\b(stands?|stood) (in|at|as|there|for|where|behind|before|beside)\b": "is in, is stored in, means",
    r"\b(go(es)?|gone|went) on with\b|\bgoes on by\b": "continue, resume",
    r"\b(comes?|came) (along|of|out of|in between)\b": "follows, results from",
    r"\b(have|has|had) (it|them|rows|each|all|the [a-z]+) (read|sent|made|written|looked at|done|taken|asked)\b": "reads, sends",
    r"\bthat (is|are) no\b|\bnone to speak of\b|\bas (it|they) (is|are) by (now|then)\b|\bby then\b": "say it directly",
    r"\bin all\b(?! (of|the|these|those))": "in total",
    r"\b(let|lets) (it|us|them|him|nobody|one) in\b|\bnot let in\b": "authentication failed",
    r"\bstrangers?\b|\bvisitors?\b|\bcrew\b|\bseeing off\b|\bseen off\b": "other users, clients, workers",
}  # fmt: skip
_COMPILED = {re.compile(pattern, re.MULTILINE): better for pattern, better in RULES.items()}
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class Text(NamedTuple):
    """A piece of prose and the number of its first line."""

    path: Path
    line: int
    words: str


def documentation() -> Iterator[Text]:
    """Yield the lines of Markdown files outside of code."""
    for path in [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]:
        is_code = False
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if line.lstrip().startswith("```"):
                is_code = not is_code
            elif not is_code:
                yield Text(path, number, re.sub(r"`[^`]*`", "`x`", line))


def of_module(path: Path) -> tuple[list[Text], list[Text]]:
    """Return the docstrings and comments of a module, and its other literals with more than one word."""
    source = path.read_text()
    tree = ast.parse(source)
    documented = [node for node in ast.walk(tree) if isinstance(node, _DOCUMENTED) and node.body]
    docstrings = {
        id(node.body[0].value)
        for node in documented
        if isinstance(node.body[0], ast.Expr) and isinstance(node.body[0].value, ast.Constant)
    }
    comments: list[Text] = []
    messages: list[Text] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            (comments if id(node) in docstrings else messages).append(Text(path, node.lineno, node.value))
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            comments.append(Text(path, token.start[0], token.string.lstrip("#: ")))
    return comments, messages


def matches(text: Text) -> Iterator[tuple[int, str, str]]:
    """Yield the line of each match, its words, and what to write instead."""
    for pattern, better in _COMPILED.items():
        for match in pattern.finditer(text.words):
            yield text.line + text.words.count("\n", 0, match.start()), match[0].strip(), better


def main() -> int:
    """Print what was found; return 1 where a limit is exceeded."""
    modules = [of_module(path) for path in sorted((ROOT / "bwtui").rglob("*.py"))]
    kinds = {
        "documentation": list(documentation()),
        "docstrings and comments": [text for comments, _ in modules for text in comments],
        "messages": [text for _, messages in modules for text in messages],
    }
    failed = False
    for kind, texts in kinds.items():
        found = [(text.path, *match) for text in texts for match in matches(text)]
        density = 1_000 * len(found) / sum(len(text.words.split()) for text in texts)
        is_exceeded = density > LIMITS[kind]
        failed |= is_exceeded
        if "--list" in sys.argv or is_exceeded:
            for path, line, words, better in found:
                print(f"{path.relative_to(ROOT)}:{line}: {words!r}: write {better}")
        print(f"{kind}: {density:.2f} matches per 1,000 words, limit {LIMITS[kind]}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
