"""``bwtui config``."""

import json
from pathlib import Path

import pytest

from tests.unit.test_cli_main import alone, invoke

__all__ = ["alone"]

FILE = """
postgres = "host=db password=hunter2"
schema-registry = "http://me:hunter2@registry:8081"
[kafka]
sasl.password = "hunter2"
[registry]
"basic.auth.user.info" = "me:hunter2"
[profile.prod]
slot = "prod"
"""


@pytest.fixture(autouse=True)
def file(alone: None, tmp_path: Path) -> Path:
    """A bwtui.toml full of secrets, readable by other users."""
    path = tmp_path / "bwtui.toml"
    path.write_text(FILE)
    path.chmod(0o644)
    return path


def test_show_tells_value_and_origin_and_no_secret() -> None:
    for extra in ([], ["--json"]):
        code, out, err = invoke("config", "show", *extra)
        assert (code, err) == (0, "")
        assert "hunter2" not in out
    shown = json.loads(out)
    assert shown["postgres"] == {"value": "host=db password=***", "origin": "./bwtui.toml"}
    assert shown["kafka.sasl.password"]["value"] == "***"
    assert shown["registry.basic.auth.user.info"]["value"] == "me:***"
    assert shown["slot"] == {"value": "bottledwater", "origin": "default"}


def test_show_with_a_profile() -> None:
    _, out, _ = invoke("config", "show", "--profile", "prod", "--json")
    assert json.loads(out)["slot"] == {"value": "prod", "origin": "./bwtui.toml [profile.prod]"}


def test_validate_warns_of_secrets_that_others_may_read(file: Path) -> None:
    code, out, err = invoke("config", "validate")
    assert code == 0
    assert "bwtui.toml: fine" in out
    assert "bwtui: warning: bwtui.toml contains secrets" in err
    file.chmod(0o600)
    assert invoke("config", "validate")[2] == ""


def test_validate_warns_of_variables_that_nothing_reads(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.unlink()
    monkeypatch.setenv("BWTUI_BROKR", "x")
    code, out, err = invoke("config", "validate")
    assert code == 0
    assert [line.partition(":")[0] for line in out.splitlines()] == ["environment", "not there", "not there"]
    assert err == "bwtui: warning: unknown environment variable BWTUI_BROKR; did you mean BWTUI_BROKER?\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[kafka]\n"batch.szie" = 1', "librdkafka has no property batch.szie"),
        ('[profile.x.kafka]\nacks = "1"', "./other.toml [profile.x.kafka]: acks=1 is not allowed"),
        ("broker = 1", "./other.toml: broker: expected a string"),
        ('[profile.x]\nbrokr = "b"', "./other.toml [profile.x]: unknown key 'brokr'"),
        ('[profile.x]\nslot = "Big"', "./other.toml [profile.x]: slot: 'Big' can't name"),
        ("[kafka]\nlinger.ms = 'soon'", '[kafka]: Invalid value for configuration property "linger.ms"'),
        ("[topic]\nlinger.ms = 1", "./other.toml [topic]: linger.ms is not a topic property"),
        ("[kafka]\nssl.ca.location = '/nowhere'", "can't be read: /nowhere"),
        ("[profile.x.registry]\nssl.ca.location = '/nowhere'", "./other.toml [profile.x.registry]: the file"),
        ("[registry]\nbasic.auth = 'x'", "no property basic.auth"),
        ("[registry]\npassword = 'x'", 'use basic.auth.user.info, as "USER:PASSWORD"'),
        ("[registry]\ntimeout = 'soon'", "./other.toml [registry]: timeout=soon is not a valid number"),
        ("[registry]\nurl = 'http://x'", "./other.toml [registry]: url is not allowed"),
        ('output-format = "json"\nnamespace = "com.acme"', "namespace requires Avro"),
        ('connect-names = true\n[profile.x]\noutput-format = "json"', "connect-names requires Avro"),
        ("heal = true\nskip-snapshot = true", "are mutually exclusive"),
        ("postgres = 'postgresql://me:s3cr/et@db/shop'", "unescaped / or @"),
        ("[profile.x]\npostgres = 'dbnme=shop'", "./other.toml [profile.x]: postgres: "),
        *(
            (f"[kafka]\n'bad key' = {value}", "'bad key' is not the name of a property")
            for value in ("true", "1", "'x'")
        ),
    ],
)
def test_validate_refuses_a_wrong_file(text: str, message: str) -> None:
    Path("other.toml").write_text(text)
    code, out, err = invoke("config", "validate", "other.toml")
    assert (code, out) == (2, "")
    assert message in err


def test_validate_refuses_what_file_and_environment_make_together(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is valid alone; connect rejects the combination with the same message."""
    file.write_text('namespace = "com.acme"')
    monkeypatch.setenv("BWTUI_OUTPUT_FORMAT", "json")
    refused = [invoke(*command) for command in (("config", "validate"), ("connect", "--headless"))]
    assert [code for code, _, _ in refused] == [2, 2]
    assert refused[0][2] == refused[1][2]
    assert "./bwtui.toml: namespace requires Avro" in refused[0][2]


@pytest.mark.parametrize("text", ['on-record-error = "stop-recording"', f'slot = "{"s" * 63}"'])
def test_validate_leaves_open_what_the_command_line_may_add(file: Path, text: str) -> None:
    """The command line can add --record, and --publication if no publication name fits the slot's name."""
    file.write_text(text)
    assert invoke("config", "validate")[0] == 0


def test_validate_of_a_missing_file() -> None:
    code, _, err = invoke("config", "validate", "missing.toml")
    assert code == 2
    error, hint = err.splitlines()
    assert error == "bwtui: error: can't read missing.toml: No such file or directory"
    assert hint.startswith("hint: check the path")


def test_a_property_is_named_with_the_variable_that_set_it(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("bwtui.toml").unlink()
    monkeypatch.setenv("BWTUI_KAFKA_CONFIG", "acks=1")
    code, _, err = invoke("connect", "--headless")
    assert (code, err.splitlines()[0].partition(": a row")[0]) == (
        2,
        "bwtui: error: BWTUI_KAFKA_CONFIG: acks=1 is not allowed",
    )
    monkeypatch.setenv("BWTUI_KAFKA_CONFIG", "linger.ms=5")
    monkeypatch.setenv("BWTUI_REGISTRY_CONFIG", "no.such=5")
    told = invoke("connect", "--headless")[2]
    assert "BWTUI_REGISTRY_CONFIG: the registry's client has no property no.such" in told


@pytest.mark.parametrize(
    ("args", "place"),
    [
        (["-s", "Bad"], "-s"),
        (["--slot", "Bad"], "--slot"),
        (["--slot=Bad"], "--slot"),
        (["-sBad"], "-s"),
        (["--kafka-config", "acks=1"], "--kafka-config"),
        (["-Cacks=1"], "-C"),
        (["-T", "acks=1"], "-T"),
    ],
)
def test_an_option_is_named_as_it_was_typed(args: list[str], place: str) -> None:
    assert invoke("connect", "--headless", *args)[2].startswith(f"bwtui: error: {place}: ")


def test_every_property_of_the_registrys_client_is_taken_by_it() -> None:
    from confluent_kafka.schema_registry import SchemaRegistryClient

    from bwtui.encode.registry import _NUMBERS, registry_config

    given = tuple((key, "1") for key in _NUMBERS)
    texts = (("basic.auth.user.info", "me:x"), ("proxy", "http://proxy"))
    SchemaRegistryClient(registry_config("http://registry", given + texts)).close()
