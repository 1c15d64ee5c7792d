"""The documentation: every page is in the navigation, every link works, and every command can be parsed."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from bwtui.errors import BwtuiError
from tests.command_lines import commands, parsed, words

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
#: The promises of the site's front page, in the order of its navigation.
TASKS = ["Debug", "Record", "Audit", "Heal", "Operate", "Move from Debezium", "Move from Bottled Water"]


class _Loader(yaml.SafeLoader):  # type: ignore[misc]  # It has no types.
    """Skip Python-specific tags."""


_Loader.add_multi_constructor("!!python/", lambda *_: None)
_Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)


def navigation() -> list[Any]:
    """Return the site's navigation."""
    nav = yaml.load((ROOT / "mkdocs.yml").read_text(), _Loader)["nav"]
    assert isinstance(nav, list)
    return nav


def named(part: Any) -> list[str]:
    """Return the pages in a part of the navigation."""
    if isinstance(part, str):
        return [part]
    parts = part.values() if isinstance(part, dict) else part
    return [page for one in parts for page in named(one)]


def test_every_page_has_one_place_and_tasks_come_first() -> None:
    assert sorted(named(navigation())) == sorted(page.name for page in DOCS.glob("*.md"))
    titles = [next(iter(part)) for part in navigation() if isinstance(part, dict)]
    assert [title for title in titles if title in TASKS] == TASKS


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and the site make them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title) for title in titles)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```|`[^`\n]*`", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"\w+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        assert path.exists(), target
        # Pages of the site can't link to files outside of it.
        assert DOCS not in page.parents or path.is_relative_to(DOCS), target
        assert not anchor or path.suffix != ".md" or anchor in anchors(path), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_can_be_given(page: Path) -> None:
    for command in commands(page.read_text()):
        try:
            parsed(words(command))
        except click.exceptions.Exit:
            continue
        except (click.UsageError, BwtuiError) as error:
            raise AssertionError(f"{command}: {error}") from error


@pytest.mark.long
def test_the_site_is_made_without_a_warning(tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    programs = venv / "bin"

    def run(*command: str | Path) -> None:
        subprocess.run(command, check=True, cwd=ROOT, timeout=300)

    run(sys.executable, "-m", "venv", venv)
    run(programs / "pip", "install", "-q", "--disable-pip-version-check", "-r", "packaging/docs.txt")
    run(programs / "mkdocs", "build", "--strict", "--site-dir", tmp_path / "site")
    assert (tmp_path / "site" / "heal" / "index.html").exists()


def test_what_is_no_command_is_found() -> None:
    found = [command for page in PAGES for command in commands(page.read_text())]
    assert len(found) > 70
    assert "bwtui verify --database --relay shop" in found
    for wrong in ("bwtui verfiy ./shop", "bwtui slots list --relay shop", "bwtui slots drop"):
        with pytest.raises((click.UsageError, BwtuiError)):
            parsed(words(wrong))
