"""Run each command of the documentation, page by page and in order, on real services."""

import json
import re
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from bwtui.cli.main import cli
from bwtui.model.number_format import duration
from bwtui.packages.artifacts import cache_folder
from bwtui.sandbox.ports import choose
from bwtui.sandbox.sandbox import ServiceAddresses
from tests.docs.pages import PAGES, ROOT, SHELL, Block, Command, blocks, commands, missing, plain
from tests.docs.scenes import CANNOT, NO_COMMANDS, SCENES, STATEMENTS, TESTED, Scene, replaced
from tests.docs.shell import Shell


def is_to_type(block: Block) -> bool:
    """Return whether a block is commands."""
    others = NO_COMMANDS.get(block.page, {})
    return block.language in SHELL and not any(block.first.startswith(one) for one in others)


def cannot(page: str, command: Command) -> bool:
    """Return whether a command isn't run."""
    return any(command.typed.startswith(one) for one in CANNOT.get(page, {}))


def told(page: str) -> list[Command]:
    """Return all that a page says to type, including statements for the programs that run them."""
    found = []
    for block in blocks(page):
        if is_to_type(block):
            found += commands(block)
        elif block.language == "sql" and page in STATEMENTS:
            found.append(Command(f"{STATEMENTS[page]} <<'SQL'\n{block.text}SQL"))
    return found


def run_by(page: str) -> list[Command]:
    """Return the commands to run."""
    return [command for command in told(page) if not cannot(page, command)]


RUN = [page for page in PAGES if run_by(page)]
#: The other pages take minutes; this one has a relay with screens, an audit and a repair.
QUICK = "heal.md"


@pytest.fixture
def shell(
    services: ServiceAddresses, database: str, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[tuple[Shell, dict[str, str]]]:
    """A shell in an empty home, and the addresses of this test's services."""
    prefix = f"docs_{secrets.token_hex(4)}"
    places = {
        "database": f"'{database}'",
        "broker": services.broker,
        "registry": services.schema_registry,
        "prefix": prefix,
        "port": str(choose(["metrics"], {})["metrics"]),
        "root": str(ROOT),
    }
    variables = {
        "BWTUI_POSTGRES": database,
        "BWTUI_BROKER": services.broker,
        "BWTUI_SCHEMA_REGISTRY": services.schema_registry,
        # The topics belong to this test only, whatever others have left in Kafka.
        "BWTUI_TOPIC_PREFIX": prefix,
    }
    own = SCENES.get(request.node.callspec.params["page"], Scene()).alone
    with Shell(tmp_path, {"BWTUI_CACHE_HOME": str(cache_folder())} | ({} if own else variables)) as shell:
        (shell.home / "recordings").symlink_to(ROOT / "recordings")
        yield shell, places
        shell.run("for one in shop bottledwater; do bwtui stop $one; done; bwtui sandbox down --wipe")


def expected(scene: Scene, typed: str, shown: str, then: Command | None) -> list[int]:
    """Return the exit codes that a command may end with."""
    if then is not None and then.typed == "echo $?":
        return [int(then.shown)]
    for beginning, code in scene.codes.items():
        if re.match(beginning, typed):
            return [code]
    return [2, 3, 4, 5, 6] if "bwtui: error:" in shown else [0]


@pytest.mark.services
@pytest.mark.timeout(3000)
@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=() if page == QUICK else pytest.mark.long) for page in RUN]
)
def test_what_a_page_tells_to_type(page: str, shell: tuple[Shell, dict[str, str]]) -> None:
    bash, places = shell
    scene, given = SCENES.get(page, Scene()), run_by(page)
    due = dict(scene.before)
    for command, then in zip(given, [*given[1:], None], strict=True):
        for beginning in [one for one in due if command.typed.startswith(one)]:
            code, said = bash.run(due.pop(beginning))
            assert code == 0, said
        code, said = bash.run(replaced(command.typed, places))
        print(f"$ {command.typed}\n{said}")
        codes = expected(scene, command.typed, command.shown, then)
        assert code in codes, f"{command.typed}: exit code {code}, not {codes}\n{said}"
        assert not missing(command.shown, said, scene.varies), f"{command.typed}\n{said}"
        for beginning, words in scene.says.items():
            assert not command.typed.startswith(beginning) or words in said.replace('": ', '":'), said
    assert not due, "what is to be run before them is not there"


@pytest.mark.parametrize("seconds", [0.6, 28, 65, 7_500, 270_000])
def test_a_slow_machine_shows_what_the_page_shows(seconds: float) -> None:
    assert plain(f"200 rows sent, in {duration(seconds)}") == plain("17 rows sent, in 2.1 s")


# -- completeness --------------------------------------------------------------------------------------------


def test_what_is_not_run_is_named_with_a_reason_and_is_there() -> None:
    for page, reasons in CANNOT.items():
        for beginning, reason in reasons.items():
            assert any(command.typed.startswith(beginning) for command in told(page)), (page, beginning)
            for path in re.findall(r"tests/[\w/]+(?:\.py)?", reason):
                assert (ROOT / path).exists(), reason
    for page, reasons in NO_COMMANDS.items():
        for beginning in reasons:
            assert any(block.first.startswith(beginning) for block in blocks(page)), (page, beginning)


NOT_RUN = [(page, command) for page in CANNOT for command in told(page) if cannot(page, command)]


@pytest.mark.parametrize(("page", "command"), NOT_RUN, ids=lambda one: getattr(one, "typed", one))
def test_what_is_not_run_can_be_read_by_a_shell_and_names_files_that_are_there(
    page: str, command: Command
) -> None:
    subprocess.run(["bash", "-n", "-c", command.typed], check=True)
    for path in re.findall(r"(?<!\S)(?:\./)?packaging/[\w@./-]+", command.typed):
        assert (ROOT / path).exists(), command.typed
    if command.typed.startswith("make "):
        target = command.typed.split()[1]
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), target


# -- blocks of another language ------------------------------------------------------------------------------

OTHERS = [block for page in PAGES for block in blocks(page) if block.language not in SHELL]


def test_each_block_of_another_language_is_looked_at() -> None:
    for block in OTHERS:
        by = TESTED.get((block.page, block.language))
        here = block.language in {"toml", "yaml", "json"} or (block.language, block.page in STATEMENTS) == (
            "sql",
            True,
        )
        assert by or here, f"{block.page}: {block.first}"
        assert by is None or (ROOT / by).exists(), by


@pytest.mark.parametrize(
    "block",
    [one for one in OTHERS if one.language == "toml" and (one.page, "toml") not in TESTED],
    ids=lambda one: f"{one.page}-{one.first}",
)
def test_settings_are_taken(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bwtui.toml").write_text(block.text)
    (tmp_path / "bwtui.toml").chmod(0o600)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "none"))
    result = CliRunner().invoke(cli, ["config", "show"])
    assert result.exit_code == 0, result.output
    for name, value in re.findall(r'^"?([\w.]+)"? = "([\w-]+)"', block.text, re.MULTILINE):
        if block.page == "security.md" and "password" not in name:
            assert re.search(rf"{re.escape(name)}\b.*{re.escape(value)}", result.output), result.output


@pytest.mark.parametrize(
    "block",
    [one for one in OTHERS if one.language in {"yaml", "json"}],
    ids=lambda one: f"{one.page}-{one.first[:20]}",
)
def test_objects_can_be_read(block: Block) -> None:
    text = re.sub(r"^// .*\n", "", block.text)
    assert yaml.safe_load(text) if block.language == "yaml" else json.loads(text)
