"""The command line as a whole: help, errors, exit codes, and what is imported."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from bwtui.cli.lazy import LazyGroup
from bwtui.cli.main import COMMANDS, cli, guarded
from bwtui.errors import BwtuiError, ConnectionFailed, Interrupted, SlotLost

HEAVY = (
    "pyspark",
    "duckdb",
    "textual",
    "confluent_kafka",
    "psycopg2",
    "psycopg",
    "rich",
    "fastavro",
    "bwtui.model.status",
    "asyncio",
)


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run without relays, configuration, and environment variables of the user."""
    for name in [name for name in os.environ if name.startswith("BWTUI_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("BWTUI_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)


def invoke(*args: str) -> tuple[int, str, str]:
    """Run a command; return its exit code, stdout and stderr."""
    result = CliRunner().invoke(cli, list(args), prog_name="bwtui")
    return result.exit_code, result.stdout, result.stderr


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from bwtui.cli.main import main\n"
        "try: main()\n"
        "except SystemExit as end: assert end.code == 0, end.code\n"
        f"print([m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)"
    )
    for args in (["--help"], ["connect", "-h"], ["--version"]):
        ran = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, check=True)
        assert ran.stderr == "[]\n", args
        assert ran.stdout


def all_commands(
    group: click.Group, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from all_commands(command, (*path, name))


@pytest.mark.parametrize(
    ("path", "command"),
    [pytest.param(p, c, id=" ".join(p)) for p, c in all_commands(cli) if p[0] != "sandbox"],
)
def test_every_help_has_a_sentence_and_an_example(path: tuple[str, ...], command: click.Command) -> None:
    for flag in ("-h", "--help"):
        code, out, err = invoke(*path, flag)
        assert (code, err) == (0, "")
        assert "Example" in out
        assert f"bwtui {' '.join(path)}" in out.partition("Example")[2]
    assert command.help
    assert all(p.help for p in command.params if isinstance(p, click.Option)), "an option without help"


def test_the_list_of_commands_names_those_that_exist() -> None:
    _, out, _ = invoke("--help")
    for name, (_, sentence) in COMMANDS.items():
        assert f"  {name} " in out
        assert sentence in out


def test_lists_of_commands_cut_no_sentence_off() -> None:
    for path, command in all_commands(cli):
        if isinstance(command, click.Group):
            assert "..." not in invoke(*path, "--help")[1].partition("\nCommands:")[2], path


@pytest.mark.parametrize("path", [(), ("recording",), ("slots",)])
def test_without_a_command_the_commands_are_listed(path: tuple[str, ...]) -> None:
    code, out, err = invoke(*path)
    assert (code, out) == (2, "")
    assert err.startswith(f"Usage: {' '.join(['bwtui', *path])} [OPTIONS] COMMAND")
    assert "\nCommands:\n" in err


@pytest.mark.parametrize(
    ("args", "message", "hint"),
    [
        (["conect"], "no such command 'conect'", "did you mean 'connect'?"),
        (["zzz"], "no such command 'zzz'", "'bwtui --help' lists the commands"),
        (["recording", "chek"], "no such command 'recording chek'", "did you mean 'check'?"),
        (
            ["verify", "x", "--table", "a"],
            "--table can't be used in the audit of a recording",
            "an audit covers the whole recording and the topics that it was sent to; "
            "--table is an option of --database",
        ),
        (
            ["verify", "x", "y", "--deep"],
            "--deep can't be used in a comparison of recordings",
            "a comparison covers both recordings completely",
        ),
        (
            ["verify", "x", "--relay", "shop"],
            "--relay can't be used in the audit of a recording",
            "--relay is an option of --database",
        ),
        (["verify", "--relay", "shop"], "nothing was selected to verify", "--database"),
        *(
            (
                ["verify", "--database", "--relay", "shop", *option],
                f"{option[0]} can't be used with --relay",
                "the settings of the relay apply",
            )
            for option in (
                ("-d", "dbname=x"),
                ("-s", "x"),
                ("-p", "x"),
                ("-b", "x"),
                ("-r", "http://x"),
                ("-C", "linger.ms=1"),
                ("--publication", "x"),
                ("--profile", "x"),
            )
        ),
        (["verify", "--database", "--relay", "../x"], "'../x' can't name a relay", None),
        (["verify", "--database", "--deep"], "--deep can't be used with --database", "omit it"),
        (["config", "check"], "no such command 'check'", "choose one of show, validate"),
        (
            ["schema", "check", "orders"],
            "got unexpected extra argument (orders)",
            "use --table orders to select a table",
        ),
        (["slots", "lst"], "no such command 'lst'", "did you mean 'list'?"),
        (["connect", "--brokr", "x"], "no such option --brokr", "did you mean --broker?"),
        (["connect", "--zzz"], "no such option --zzz", "'bwtui connect --help' lists the options"),
        (["connect", "-d"], "option '-d' requires an argument", "'bwtui connect --help' lists the options"),
        (
            ["config", "show", "--profile"],
            "option '--profile' requires an argument",
            "'bwtui config show --help' lists the options",
        ),
        (["connect", "-f", "xml"], "-f: 'xml' is not one of avro, json", None),
        (["connect"], "the screens need a terminal", "add --headless or --detach"),
        (["connect", "--json"], "--json requires --headless or --detach", "add one of them"),
        (["connect", "--headless", "--detach"], "--headless and --detach are mutually exclusive", None),
        (
            ["connect", "--headless", "--endpos", "0/1", "--until-caught-up"],
            "--endpos and --until-caught-up",
            None,
        ),
        (
            ["connect", "--headless", "-C", "batch.szie=1"],
            "-C: librdkafka has no property batch.szie",
            "batch.size?",
        ),
        (
            ["connect", "--headless", "-T", "linger.ms=1"],
            "-T: linger.ms is not a topic",
            "-C linger.ms",
        ),
        (["connect", "--headless", "-C", "linger.ms=abc"], "-C: Invalid value", None),
        (["connect", "--headless", "-C", "acks=1"], "-C: acks=1 is not allowed", None),
        (
            ["connect", "--headless", "-C", "enable.idempotence=false"],
            "-C: enable.idempotence=false is not allowed",
            None,
        ),
        (
            ["connect", "--headless", "-f", "xml"],
            "-f: 'xml' is not one of avro, json",
            None,
        ),
        (["attach", "../x"], "'../x' can't name a relay", None),
        (["slots", "drop", "BAD"], "'BAD' can't name a replication slot", None),
        (["completion", "tcsh"], "invalid value for", None),
        (["--profile"], "no such option --profile", None),
    ],
)
def test_usage_errors_are_two_plain_lines(args: list[str], message: str, hint: str | None) -> None:
    code, out, err = invoke(*args)
    assert (code, out) == (2, "")
    lines = err.splitlines()
    assert lines[0].startswith(f"bwtui: error: {message}")
    assert len(lines) <= 2
    assert all(line.startswith("hint: ") for line in lines[1:])
    if hint is not None:
        assert hint in lines[1]


@pytest.mark.parametrize(
    "args",
    [
        *(["status"], ["attach"], ["stop"], ["status", "x"], ["stop", "x"], ["attach", "x"]),
        ["verify", "--database", "--relay", "x"],
    ],
)
def test_no_relay_is_a_failed_connection(args: list[str]) -> None:
    code, out, err = invoke(*args)
    assert (code, out) == (4, "")
    assert "no relay" in err


def test_a_bare_command_shows_help_and_is_a_usage_error() -> None:
    ran = subprocess.run([sys.executable, "-m", "bwtui.cli.main"], capture_output=True, check=False)
    assert ran.returncode == 0, "the module has no entry of its own"
    code, out, err = invoke()
    assert code == 2
    assert "Commands:" in out + err


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (SlotLost("slot x is gone.", "drop it"), 5, "bwtui: error: slot x is gone\nhint: drop it\n"),
        (ConnectionFailed("two\n lines", "see\nit"), 4, "bwtui: error: two lines\nhint: see it\n"),
        (
            BwtuiError("at postgresql://me:hunter2@db/x", "look"),
            2,
            "bwtui: error: at postgresql://me:***@db/x\nhint: look\n",
        ),
        (KeyboardInterrupt(), 130, "bwtui: error: interrupted\n"),
        (Interrupted(), 130, "bwtui: error: interrupted\n"),
    ],
)
def test_errors_set_the_exit_code(
    error: BaseException, code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise error

    assert guarded(fail) == code
    assert capsys.readouterr().err == line


def test_an_unexpected_error_tells_its_place_and_nothing_of_its_text(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert guarded(lambda: LazyGroup.list_commands(cli, click.Context(cli)) and int("hunter2")) == 2
    err = capsys.readouterr().err
    assert "unexpected ValueError" in err
    assert "hunter2" not in err


@pytest.mark.parametrize("args", [["--help"], ["connect", "--config-help"], ["config", "show"]])
def test_a_closed_pipe_is_quiet(args: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    code = "from bwtui.cli.main import main; main()"
    ran = subprocess.run(
        [sys.executable, "-c", code, *args], stdout=writer, stderr=subprocess.PIPE, check=False
    )
    os.close(writer)
    assert (ran.returncode, ran.stderr) == (0, b"")


def test_config_help_names_what_is_kept_and_why() -> None:
    code, out, _ = invoke("connect", "--config-help")
    assert code == 0
    for expected in (
        "enable.idempotence=true",
        "acks=all",
        "partitioner=murmur2_random",
        "queue.buffering.max.ms",
    ):
        assert expected in out
    assert "Topic properties (-T):" in out
    assert "group.id\n" not in out, "a consumer's property"


def test_no_ansi_off_a_terminal() -> None:
    for args in (["--help"], ["connect", "--config-help"], ["config", "show"], ["status"]):
        code, out, err = invoke(*args)
        assert "\x1b" not in out + err, (args, code)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str) -> None:
    code, out, _ = invoke("completion", shell)
    assert code == 0
    assert "_BWTUI_COMPLETE" in out


def test_completion_completes_commands_and_options() -> None:
    code = "from bwtui.cli.main import main; main()"
    for words, expected in (("bwtui con", "connect"), ("bwtui connect --sch", "--schema-registry")):
        env = {**os.environ, "_BWTUI_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": "1"}
        env["COMP_CWORD"] = str(len(words.split()) - 1)
        ran = subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
        )
        assert expected in ran.stdout
