"""Settings in layers: precedence, origins, and rejected values."""

from pathlib import Path

import pytest

from bwtui import config
from bwtui.errors import UsageError
from bwtui.options import usual_place
from bwtui.settings import RelaySettings


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder and an empty user configuration folder."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "user"))
    return here


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def user_file() -> Path:
    return config.file_paths()[0]


def test_defaults_are_those_of_the_contract() -> None:
    merged = config.load(environ={})
    assert merged.settings() == RelaySettings()
    assert {s.origin for s in merged.values.values()} == {"default"}


def test_each_layer_overrules_the_one_below() -> None:
    write(user_file(), 'slot = "user"\nbroker = "user:1"\ntopic-prefix = "user"\npublication = "user"\n')
    write(Path("bwtui.toml"), 'broker = "here:1"\ntopic_prefix = "here"\npublication = "here"\n')
    environ = {"BWTUI_TOPIC_PREFIX": "env", "BWTUI_PUBLICATION": "env"}
    merged = config.load({"publication": "line"}, environ=environ)
    settings = merged.settings()
    assert (settings.slot, settings.broker, settings.topic_prefix, settings.publication) == (
        "user",
        "here:1",
        "env",
        "line",
    )
    assert [merged.values[n].origin for n in ("slot", "broker", "topic-prefix", "publication")] == [
        str(user_file()),
        "./bwtui.toml",
        "BWTUI_TOPIC_PREFIX",
        "command line",
    ]


def test_a_profile_overrules_every_file_and_not_the_environment() -> None:
    write(user_file(), '[profile.prod]\nslot = "prod"\nbroker = "prod:1"\n')
    write(Path("bwtui.toml"), 'slot = "here"\nbroker = "here:1"\n')
    merged = config.load(profile="prod", environ={"BWTUI_BROKER": "env:1"})
    assert merged.settings().slot == "prod"
    assert merged.settings().broker == "env:1"
    assert merged.values["slot"].origin == f"{user_file()} [profile.prod]"
    assert config.load(environ={"BWTUI_PROFILE": "prod"}).settings().slot == "prod"


def test_an_unknown_profile_names_the_nearest() -> None:
    write(Path("bwtui.toml"), '[profile.production]\nslot = "x"\n')
    with pytest.raises(UsageError) as caught:
        config.load(profile="producton", environ={})
    assert caught.value.hint == "did you mean 'production'?"


def test_properties_merge_key_by_key() -> None:
    write(
        user_file(),
        '[kafka]\nsecurity.protocol = "SASL_SSL"\n"linger.ms" = 5\n"socket.keepalive.enable" = true\n',
    )
    environ = {"BWTUI_KAFKA_CONFIG": "sasl.username=me\nsasl.password=a=b", "BWTUI_REGISTRY_CONFIG": "a.b=c"}
    merged = config.load({"kafka-config": ("linger.ms=20",)}, environ=environ)
    settings = merged.settings()
    assert dict(settings.kafka_config) == {
        "security.protocol": "SASL_SSL",
        "linger.ms": "20",
        "socket.keepalive.enable": "true",
        "sasl.username": "me",
        "sasl.password": "a=b",
    }
    assert settings.registry_config == (("a.b", "c"),)
    assert merged.pairs["kafka-config"]["sasl.password"].origin == "BWTUI_KAFKA_CONFIG"


def test_lists_switches_and_lsns_from_every_place() -> None:
    write(
        Path("bwtui.toml"), 'table = ["public\\\\.a", "public\\\\.b"]\nallow-unkeyed = true\nendpos = "1/2"\n'
    )
    settings = config.load(environ={"BWTUI_EXCLUDE_TABLE": "x.*\ny.*", "BWTUI_HEADERS": "yes"}).settings()
    assert settings.tables == ("public\\.a", "public\\.b")
    assert settings.exclude_tables == ("x.*", "y.*")
    assert (settings.allow_unkeyed, settings.headers, settings.end_lsn) == (True, True, (1 << 32) + 2)
    overruled = config.load({"allow-unkeyed": False, "table": ("only",)}, environ={}).settings()
    assert (overruled.allow_unkeyed, overruled.tables) == (False, ("only",))


def test_empty_variables_count_as_not_set() -> None:
    assert config.load(environ={"BWTUI_BROKER": ""}).values["broker"].origin == "default"


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ('brokr = "x:1"', "unknown key 'brokr'", "did you mean 'broker'?"),
        ('[kafak]\na = "b"', "unknown key 'kafak'", "did you mean 'kafka'?"),
        ("headless = true", "unknown key 'headless'", "--headless can be given on the command line only"),
        ('kafka-config = ["a=b"]', "unknown key 'kafka-config'", None),
        ('[profile.x]\nslto = "x"', "unknown key 'slto'", "did you mean 'slot'?"),
        ('slot = "Upper"', "slot: 'Upper' can't name a replication slot", None),
        ("slot = 3", "slot: expected a string", None),
        ('commit-ms = "-3"', "'-3' is not a positive whole number", "such as 300"),
        ('segment-bytes = "-3"', "'-3' is not a positive whole number", "such as 64M"),
        ('allow-unkeyed = "yes"', "allow-unkeyed: expected true or false", None),
        ("table = [1]", "table: expected a list of strings", None),
        ('table = "("', "is not a regular expression", None),
        ('kafka = "x"', "'kafka' is not a table", None),
        ('[kafka]\n"a" = [1]', "[kafka]: a: expected", None),
        ('profile = "x"', "'profile' may contain only", None),
        ('topic-prefix = "a"\ntopic_prefix = "b"', "is set twice", None),
        ("slot = ", "is not valid TOML", None),
        (
            "slot = shop",
            "Invalid value (at line 1",
            "put strings in quotes, write true or false in lower case, and close every [ and {",
        ),
        (
            "wait = 1\nwait = 2",
            "Cannot overwrite",
            "a key is set twice in the same table: keep one of the two",
        ),
        (
            "[kafka]\n[kafka]",
            "Cannot declare",
            "a table is declared twice: merge its keys under one [heading]",
        ),
        (
            'table = ["\\d"]',
            "Unescaped",
            "put a string with backslashes, such as a regular expression, in single quotes",
        ),
        (
            "slot",
            "Expected '='",
            "fix that line: write key = value, put strings in quotes, and put names of tables in [brackets]",
        ),
    ],
)
def test_a_wrong_file_is_refused(text: str, message: str, hint: str | None) -> None:
    write(Path("bwtui.toml"), text)
    with pytest.raises(UsageError, match=r"bwtui\.toml") as caught:
        config.load(environ={})
    assert message in caught.value.message
    if hint is not None:
        assert caught.value.hint == hint


def test_a_file_that_is_not_utf_8_is_refused() -> None:
    Path("bwtui.toml").write_bytes(b'slot = "\xff"')
    with pytest.raises(UsageError, match="byte 9 is not UTF-8"):
        config.load(environ={})


def test_a_profile_without_any_in_the_files_is_refused() -> None:
    with pytest.raises(UsageError, match="there is no profile 'x'") as caught:
        config.load(profile="x", environ={})
    assert "[profile.NAME]" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("slot", ""),
        ("slot", "a" * 64),
        ("slot", "a-b"),
        ("broker", ""),
        ("broker", "host:0"),
        ("broker", "host:99999"),
        ("broker", "a:1,,b:2"),
        ("schema-registry", "localhost:8081"),
        ("schema-registry", "http://localhost :8081"),
        ("schema-registry", "http://localhost:8081/a b"),
        ("schema-registry", "http://"),
        ("output-format", "xml"),
        ("on-error", "ignore"),
        ("topic-prefix", "a b"),
        ("topic-prefix", ".."),
        ("dead-letter-topic", "a/b"),
        ("publication", "é" * 32),
        ("name", "../x"),
        ("name", ".x"),
        ("endpos", "12"),
        ("endpos", "123456789/0"),
        ("postgres", "a\nb"),
        ("kafka-config", ("novalue",)),
        ("kafka-config", ("bad key=1",)),
        ("table", ("[",)),
    ],
)
def test_a_wrong_value_is_refused_and_named(name: str, value: object) -> None:
    with pytest.raises(UsageError, match=f"{usual_place(name)}: "):
        config.load({name: value}, environ={})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("slot", "a" * 63),
        ("slot", "0_x"),
        ("broker", "a:1, b,[::1]:9092,PLAINTEXT://c:3"),
        ("schema-registry", "http://u:p@h:8081,https://h2/path"),
        ("topic-prefix", ""),
        ("name", "Shop-1.eu"),
        ("endpos", "16/B374D848"),
        ("postgres", "service=shop"),
        ("kafka-config", ("ssl.key.password=",)),
    ],
)
def test_a_right_value_is_taken(name: str, value: object) -> None:
    assert config.load({name: value}, environ={})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("postgres", "host=h password=hunter2\udcff"),
        ("broker", "\udcff:1"),
        ("schema-registry", "http://hunter2\udcff"),
        ("kafka-config", ("sasl.password=hunter2\udcff",)),
        ("topic-config", ("cleanup.policy=\udcff",)),
        ("table", ("\udcff",)),
    ],
)
def test_what_is_not_utf_8_is_refused_and_not_told(name: str, value: object) -> None:
    """Python returns bytes of the command line like this; libpq and librdkafka can't handle them."""
    with pytest.raises(UsageError, match="is not valid UTF-8") as caught:
        config.load({name: value}, environ={})
    assert caught.value.hint
    assert "hunter2" not in caught.value.message
    assert config.load({"record": "/tmp/\udcff"}, environ={})


def test_the_value_of_a_wrong_property_is_not_told() -> None:
    with pytest.raises(UsageError) as caught:
        config.load({"kafka-config": ("sasl.passwordhunter2",)}, environ={})
    assert "hunter2" not in caught.value.message


def test_a_publication_name_made_from_a_long_slot_is_refused() -> None:
    with pytest.raises(UsageError, match="too long for a publication name"):
        config.load({"slot": "a" * 63}, environ={}).settings()
    assert config.load({"slot": "a" * 63, "publication": "p"}, environ={}).settings()


def test_unknown_variables_are_found_with_the_nearest_name() -> None:
    found = config.unknown_variables({"BWTUI_BROKR": "x", "BWTUI_SLOT": "y", "OTHER": "z"})
    assert found == {"BWTUI_BROKR": "BWTUI_BROKER"}
