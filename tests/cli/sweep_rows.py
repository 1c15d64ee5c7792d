"""Rows of bad input: the arguments, the exit code, and the text that the error must contain.

``{…}`` in an argument is a file or folder of the test. Most rows combine a few lists with the commands that
accept them, so that a command with its own option handling stands out.
"""

from collections.abc import Iterator
from typing import NamedTuple


class Row(NamedTuple):
    """One command line that must be refused."""

    args: tuple[str, ...]
    says: str
    code: int = 2
    variables: tuple[tuple[str, str], ...] = ()
    #: The text of ./bwtui.toml.
    file: str = ""

    @property
    def id(self) -> str:
        """The test's id."""
        given = " ".join(self.args) or "(nothing)"
        more = [f"{name}={value}" for name, value in self.variables] + ([self.file] if self.file else [])
        return " ".join([given, *more]).encode("unicode_escape").decode()[:120]


#: Every command that does something, with the arguments that it needs to reach its options.
COMMANDS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("demo",): (),
    ("sandbox", "up"): (),
    ("sandbox", "status"): (),
    ("sandbox", "env"): (),
    ("sandbox", "down"): (),
    ("connect",): (),
    ("record",): (),
    ("attach",): (),
    ("snapshot",): (),
    ("dead-letters", "list"): (),
    ("dead-letters", "show"): ("3f9a",),
    ("dead-letters", "retry"): ("--all",),
    ("dead-letters", "drop"): ("--all",),
    ("status",): (),
    ("stop",): (),
    ("open",): ("{recording}",),
    ("replay",): ("{recording}",),
    ("doctor",): (),
    ("slots", "list"): (),
    ("slots", "drop"): ("shop",),
    ("schema", "check"): (),
    ("recording", "info"): ("{recording}",),
    ("recording", "check"): ("{recording}",),
    ("recording", "recover"): ("{recording}",),
    ("recording", "seal"): ("{recording}",),
    ("recording", "export"): ("{recording}",),
    ("verify",): ("{recording}",),
    ("repair",): ("--database", "--dry-run"),
    ("config", "show"): (),
    ("config", "validate"): (),
    ("completion",): ("bash",),
}
_NO_FILES = (
    "sandbox",
    "attach",
    "status",
    "stop",
    "doctor",
    "slots",
    "schema",
    "config",
    "connect",
    "record",
)

#: Values that an option of a relay rejects.
VALUES = (
    *(("-s", text) for text in ("", "Big", "a-b", "a b", "x" * 64, "ü", "a;drop", "../x", "\x1b[2J")),
    *(
        ("-b", text)
        for text in ("", ":9092", "host:0", "host:99999", "a:1,,b:2", "ho st:1", "x:port", "[::1")
    ),
    *(
        ("-r", text)
        for text in ("", "localhost:8081", "ftp://x", "http://", "http://x:0", "http://x:99999", "//x")
    ),
    *(("-p", text) for text in ("a b", "..", "a/b", "ü", "x" * 201, "a\nb")),
    *(("-d", text) for text in ("a\nb", "\0")),
    *(("-f", text) for text in ("", "xml", "AVRO", "protobuf")),
    *(("-e", text) for text in ("", "ignore", "logg")),
    *(("--toast", text) for text in ("", "none", "Fetch")),
    *(("--namespace", text) for text in ("a-b", "com..acme", ".com", "com.", "1a", "ä", "a b", "x" * 201)),
    *(("--on-record-error", text) for text in ("", "go on")),
    *(("--endpos", text) for text in ("", "12", "0/G", "1/2/3", "123456789/0", "-1/0", "latest")),
    *(("--snapshot-share", text) for text in ("", "0", "91", "-1", "1.5", "30%", "1k")),
    *(("--snapshot-workers", text) for text in ("", "0", "33", "-1", "1.5", "two", "2k")),
    *(("--spark-master", text) for text in ("nope", "spark://", "spark://host", "local[0]", "mesos://h:1")),
    *(("--listen", text) for text in ("x", "0", "65536", "-1", "a:", "::1:80", "a b:80", "http://x:80", "٣")),
    *(("--log-format", text) for text in ("", "JSON", "xml")),
    *(("--commit-rows", text) for text in ("", "0", "-1", "1.5")),
    *(("--commit-ms", text) for text in ("", "0", "100ms")),
    *(("--snapshot-by", text) for text in ("", "chunk", "Export")),
    *(("--new-tables", text) for text in ("", "ad", "Add", "ignore")),
    *(("--segment-bytes", text) for text in ("", "0", "-1", "nan", "inf", "1e9", "64Q", "9" * 15 + "G")),
    *(("--segment-seconds", text) for text in ("", "0", "-5", "nan", "1.5", "9" * 20)),
    *(("--table", text) for text in ("", "(", "[", "*", "(?P<x", "a{2,1}", "\\")),
    *(("--exclude-table", text) for text in ("", ")", "[z-a]", "+")),
    *(("--publication", text) for text in ("x" * 64, "é" * 32)),
    *(("--dead-letter-topic", text) for text in ("a b", "x" * 201, ".")),
    *(("--truncate-topic", text) for text in ("a/b", "..")),
    *(("--transaction-topic", text) for text in ("a/b", "..")),
    *(("--name", text) for text in (".x", "-x", "a/b", "x" * 64, "a b", "../../etc")),
    *(("-C", text) for text in ("x", "=1", "a b=1", "no.such=1", "acks=1", "linger.ms=soon", "batch.szie=1")),
    *(("-C", text) for text in ("enable.idempotence=false", "bootstrap.servers=x", "transactional.id=x")),
    *(("-C", text) for text in ("message.timeout.ms=5", "ssl.ca.location=/nowhere", "compression.type=rar")),
    *(("-T", text) for text in ("x", "no.such=1", "linger.ms=5", "acks=0", "partitioner=random")),
)
#: Those of them that other commands have too.
_REFUSED_BY_CLIENTS = ("x", "=1", "a b=1", "no.such=1", "linger.ms=soon", "ssl.ca.location=/nowhere")
_OF_ENDPOINTS = {"-b", "-r", "-d", "-C"}

#: Invalid texts of bwtui.toml.
FILES = (
    "slot = ",
    "slot = bottledwater",
    "slot",
    "[kafka",
    "= 1",
    "a = 1\na = 2",
    "\x00",
    'brokr = "x:1"',
    'host = "x"',
    "slot = 3",
    "slot = []",
    'slot = "Big"',
    'broker = "x:0"',
    "broker = true",
    'schema-registry = "x"',
    'output-format = "xml"',
    'on-error = "stop"',
    'toast = "maybe"',
    'allow-unkeyed = "yes"',
    "allow-unkeyed = 1",
    "headers = []",
    'namespace = "com.acme-shop"',
    'connect-names = "perhaps"',
    "table = [1]",
    'table = ""',
    'exclude-table = [""]',
    'endpos = ""',
    'table = "("',
    'table = ["a", "["]',
    "table = {}",
    'endpos = "12"',
    "segment-bytes = 0",
    "segment-bytes = -1",
    "segment-bytes = 1.5",
    "segment-bytes = true",
    'segment-bytes = "64Q"',
    'kafka = "x"',
    "kafka-config = ['a=b']",
    "[kafak]\na = 'b'",
    "[kafka]\na = [1]",
    "[kafka]\n'a b' = 1",
    "[kafka]\nno.such = 1",
    "[kafka]\nacks = 1",
    "[kafka]\nlinger.ms = 'soon'",
    "[kafka]\nssl.ca.location = '/nowhere'",
    "[kafka]\nbootstrap.servers = 'x'",
    "[topic]\nlinger.ms = 1",
    "[topic]\nno.such = 1",
    "[registry]\nno.such = 1",
    "[registry]\ntimeout = 'soon'",
    "[registry]\ntimeout = nan",
    "[registry]\nmax.retries = -1",
    "[registry]\nurl = 'http://x'",
    "[registry]\nssl.ca.location = '/nowhere'",
    "profile = 'x'",
    "[profile]\nx = 1",
    "[profile.x]\nslto = 'x'",
    "[profile.x]\nslot = 'Big'",
    "[profile.x.kafka]\nacks = '0'",
    "[profile.x.registry]\nno.such = 1",
    "topic-prefix = 'a'\ntopic_prefix = 'b'",
    "[profile.x]\nname = 'a'\n[profile.x.profile.y]\nname = 'b'",
)

#: The texts that a query's error points at.
QUERIES = (
    *(
        "",
        "(",
        ")",
        "table",
        "table =",
        "= orders",
        "table = ",
        "table orders",
        "op = upsert",
    ),
    *(
        "and",
        "op = insert and",
        "op = insert or or",
        "not",
        "not not",
        "op = insert op = delete",
        "tabel = x",
    ),
    *(
        "lsn = 12",
        "lsn > 0/G",
        "lsn ~ x",
        "time > yesterday",
        "time > 2026-13-01",
        "time > -5x",
        "xid = many",
    ),
    *(
        "xid = 1.5",
        "size > big",
        "table ~ '('",
        "table ~ '['",
        "table ~ '*'",
        "table ~ 'a{2,1}'",
        "table ~ '\\'",
    ),
    *(
        "table ~ '(?<x>a)'",
        "table ~ '[b-a]'",
        "table ~ 'a{2000}'",
        "table ~ ')'",
        "table ~ '[[:x:]]'",
    ),
    *("after", "after = 1", "after.", "after.a.b = 1", "table.x = 1", "after.a == == 1", "after.a = null"),
    *("after.a is", "after.a is 5", "before.a is unchanged", "after.a in", "after.a in (", "after.a in ()"),
    *(
        "after.a in (1",
        "after.a in (1,",
        "after.a in 1",
        "after.a not 5",
        "'a' = 1",
        "after.a = 'x",
        'after."a = 1',
    ),
    *(
        "after.a ! 1",
        "after.a !",
        "op = 'insert",
        'table = "orders"',
        "changed is null",
        "changed < a",
        "a" * 300,
    ),
    *(
        "(" * 300 + "op = insert" + ")" * 300,
        "(op = insert",
        "op = insert)",
        "op in (insert, upsert)",
        "op = null",
    ),
)

NUMBERS = ("nan", "inf", "-inf", "-1", "1e999", "", "many", "0x10", "1,5", "--5")
_NUMBER_OPTIONS = (
    (("stop",), "--timeout"),
    (("demo", "--headless"), "--seconds"),
    (("demo", "--headless"), "--rate"),
    (("demo", "--headless"), "--scale"),
    (("demo", "--headless"), "--seed"),
    (("replay", "{recording}"), "--rate"),
    (("replay", "{recording}"), "--pace"),
    (("verify", "{recording}"), "--findings"),
)

_READERS = (
    ("recording", "info"),
    ("recording", "check"),
    ("recording", "recover"),
    ("recording", "seal"),
    ("recording", "export", "--format", "jsonl"),
    ("replay", "--yes"),
    ("verify",),
    ("open",),
)
_NO_RECORDINGS = ("{missing}", "{file}", "{file}/x", "{folder}", "{loop}", "x" * 300, "")

_VARIABLES = (
    *(("BWTUI_SLOT", "Big"), ("BWTUI_BROKER", "x:0"), ("BWTUI_SCHEMA_REGISTRY", "x"), ("BWTUI_TABLE", "(")),
    *(
        ("BWTUI_OUTPUT_FORMAT", "xml"),
        ("BWTUI_ON_ERROR", "x"),
        ("BWTUI_HEADERS", "perhaps"),
        ("BWTUI_NAME", ".x"),
    ),
    *(
        ("BWTUI_ENDPOS", "12"),
        ("BWTUI_SEGMENT_BYTES", "nan"),
        ("BWTUI_KAFKA_CONFIG", "x"),
        ("BWTUI_TOAST", "x"),
    ),
    *(
        ("BWTUI_TOPIC_PREFIX", "a b"),
        ("BWTUI_UNTIL_CAUGHT_UP", "2"),
        ("BWTUI_WAIT_FOR_SERVICES", "a"),
        ("BWTUI_LISTEN", "a"),
        ("BWTUI_REGISTRY_CONFIG", "="),
    ),
    *(("BWTUI_PUBLICATION", "x" * 64), ("BWTUI_TRUNCATE_TOPIC", "a/b"), ("BWTUI_PROFILE", "nowhere")),
)

_MODES = (
    Row(("connect",), "need a terminal"),
    Row(("connect", "--json"), "--json requires"),
    Row(("connect", "--headless", "--detach"), "mutually exclusive"),
    Row(("connect", "--headless", "--record", ""), "--record has an empty value"),
    Row(("connect", "--headless", "--on-record-error", "stop-recording"), "--on-record-error requires"),
    Row(("connect", "--headless", "--endpos", "0/1", "--until-caught-up"), "--endpos and --until-caught-up"),
    Row(("connect", "--headless", "-f", "json", "--namespace", "com.acme"), "--namespace requires Avro"),
    Row(("connect", "--headless", "-f", "json", "--connect-names"), "--connect-names requires Avro"),
    Row(
        ("connect", "--headless", "--exactly-once", "--snapshot-by", "chunks"),
        "can't be combined with --snapshot-by",
    ),
    Row(
        ("connect", "--headless", "--exactly-once", "--snapshot-workers", "2"),
        "can't be combined with --snapshot-workers",
    ),
    Row(
        ("connect", "--headless", "--exactly-once", "--spark-master", "local[2]"),
        "can't be combined with --spark-master",
    ),
    Row(("connect", "--headless", "--exactly-once", "--heal"), "can't be combined with --heal yet"),
    Row(("connect", "--headless", "-s", "x" * 63), "too long for a publication name"),
    Row(("connect", "--headless", "--profile", "nowhere"), "no profile 'nowhere'"),
    Row(("record",), "-o DIR is missing"),
    Row(("record", "-o", ""), "-o DIR is missing"),
    Row(("record", "-o", "x", "-C", "a=b"), "no such option -C"),
    Row(("demo",), "need a terminal"),
    Row(("demo", "--seconds", "5"), "--seconds requires --headless"),
    Row(("demo", "--sabotage"), "--sabotage requires --headless"),
    Row(("demo", "--sabotage", "--no-audit"), "--sabotage requires the audit"),
    Row(("attach", "shop"), "no relay called shop", 4),
    Row(("attach",), "no relay is running", 4),
    Row(("status",), "no relay is running", 4),
    Row(("status", "shop"), "no relay called shop", 4),
    Row(("status", "shop", "--json"), "no relay called shop", 4),
    Row(("stop",), "no relay is running", 4),
    Row(("stop", "shop"), "no relay called shop", 4),
    Row(("snapshot",), "no table was given"),
    Row(("snapshot", "--where", "true"), "no table was given"),
    Row(("snapshot", "--no-wait"), "no table was given"),
    Row(("snapshot", "orders", "--status"), "TABLE and --status are mutually exclusive"),
    Row(("snapshot", "--pause", "1", "--cancel", "1"), "--pause and --cancel are mutually exclusive"),
    Row(("snapshot", "--status", "-u"), "-u/--unkeyed requires a table"),
    Row(("snapshot", "--status", "--where", "true"), "--where requires exactly one table"),
    Row(("snapshot", "orders", "items", "--where", "true"), "--where requires exactly one table"),
    Row(("snapshot", "orders", "--where", " \n"), "--where is empty"),
    Row(("snapshot", "orders"), "no relay is running", 4),
    Row(("snapshot", "orders", "--relay", "shop"), "no relay called shop", 4),
    Row(("snapshot", "--status", "--relay", "shop"), "no relay called shop", 4),
    Row(("snapshot", "--cancel", "1-orders", "--relay", "shop", "--json"), "no relay called shop", 4),
    Row(("verify",), "nothing was selected to verify"),
    Row(("repair",), "nothing was selected to repair"),
    Row(("repair", "--database", "{file}"), "mutually exclusive"),
    Row(("repair", "{missing}"), "can't be read"),
    Row(("repair", "{file}"), "is not an audit report"),
    Row(("repair", "--relay", "shop", "--dry-run"), "no relay", 4),
    Row(("repair", "--relay", "shop", "-s", "shop"), "-s can't be used with --relay"),
    Row(("verify", "{recording}", "{recording}", "{recording}"), "at most two recordings"),
    Row(("verify", "--database", "{recording}"), "--database takes no recording"),
    Row(("verify", "--database", "--relay", "shop"), "no relay", 4),
    Row(("verify", "{recording}", "--html", "{missing}/x.html"), "can't be written"),
    Row(("verify", "{recording}", "--html", "{folder}"), "can't be written"),
    Row(("verify", "{recording}", "--html", "{file}/x"), "can't be written"),
    Row(("replay", "{recording}", "--rate", "5", "--pace", "2"), "mutually exclusive"),
    Row(("replay", "{recording}", "--only-missing", "{missing}"), "No such file"),
    Row(("replay", "{recording}", "--only-missing", "{folder}"), "s a directory"),
    Row(("replay", "{recording}", "--only-missing", "{file}"), "is not an audit report"),
    Row(("replay", "{recording}", "--table", "("), "is not a regular expression"),
    Row(("recording", "export", "{recording}"), "issing option"),
    Row(("recording", "export", "{recording}", "--format", "sql"), "'sql' is not one of"),
    Row(("recording", "export", "{recording}", "--format", "parquet"), "Parquet can't be written to stdout"),
    Row(("recording", "export", "{recording}", "--format", "jsonl", "-o", ""), "-o has an empty value"),
    Row(("recording", "export", "{recording}", "--format", "jsonl", "-o", "{missing}/x"), "can't write"),
    Row(("recording", "export", "{recording}", "--format", "jsonl", "-o", "{file}"), "already exists"),
    Row(("recording", "export", "{recording}", "--format", "jsonl", "-o", "{file}/x"), "can't write"),
    Row(("recording", "export", "{recording}", "--format", "jsonl", "-o", "x" * 300), "File name too long"),
    Row(("recording", "export", "{recording}", "--format", "jsonl", "--create"), "no such option --create"),
    Row(("open", "{recording}", "--at", "200%"), "100%"),
    Row(("open", "{recording}", "--at", "0/G"), "0/G"),
    Row(("open", "{recording}", "--at", "soon"), "soon"),
    Row(("open", "{recording}", "--at", "#99999"), "99,999"),
    Row(("open", "{recording}", "--at", "F/0"), "F/0"),
    Row(("open", "{recording}", "--at", "xid 99999"), "no transaction 99999"),
    Row(("open", "{recording}", "--at", ""), ""),
    Row(("verify", "{recording}", "-d", "dbname=x"), "error: -d can't be used"),
    Row(("verify", "{recording}", "--postgres", "dbname=x"), "error: --postgres can't be used"),
    Row(("verify", "{recording}", "-s", "shop"), "error: -s can't be used"),
    Row(("verify", "--database", "--spark-master", "local"), "error: --spark-master can't be used"),
    Row(("verify", "--database", "--deep"), "error: --deep can't be used"),
    Row(("verify", "{recording}", "{recording}", "--deep"), "error: --deep can't be used"),
    Row(("schema", "check", "-f", "json"), "JSON messages have no schema"),
    Row(("schema", "check", "--ddl", "{missing}"), "No such file"),
    Row(("schema", "check", "--ddl", "{folder}"), "s a directory"),
    Row(("schema", "check", "--ddl", "{binary}"), "is not UTF-8"),
    Row(("schema", "check", "--relay", "nobody"), "no relay called nobody is running", code=4),
    Row(("schema", "check", "--relay", "shop", "-s", "shop"), "error: -s can't be used"),
    Row(("schema", "check", "--relay", "shop", "--table", "t"), "error: --table can't be used"),
    Row(("schema", "check", "--relay", "a/b"), ""),
    Row(("sandbox", "up", "--postgres", "13"), "'13' is not one of"),
    Row(("sandbox", "status"), "the sandbox is not running", 4),
    Row(("sandbox", "env"), "the sandbox is not running", 4),
    Row(("config", "validate", "{missing}"), "can't read"),
    Row(("config", "validate", "{folder}"), "can't read"),
    Row(("config", "validate", "{file}/x"), "can't read"),
    Row(("config", "validate", "{binary}"), "is not UTF-8"),
    Row(("config", "show", "--profile", "nowhere"), "no profile 'nowhere'"),
    Row(("completion", "tcsh"), "'tcsh' is not one of"),
    Row(("completion",), "issing argument"),
    Row(("slots", "drop"), "issing argument"),
    Row(("replay",), "issing argument"),
    Row(("open",), "issing argument"),
    Row(("recording", "info"), "issing argument"),
    Row(("slots", "drop", "shop", "-d", "host=127.0.0.1 no_such=1"), "connection string"),
    Row(("slots", "list", "-d", "postgresql://[half/shop"), "connection string"),
)

_LETTERS = ("dead-letters",)
_OF_LETTERS = (
    *(Row((*_LETTERS, command), "no dead letter was") for command in ("show", "retry", "drop")),
    *(Row((*_LETTERS, command, "xyz"), "no relay is running", 4) for command in ("show", "retry", "drop")),
    Row((*_LETTERS, "list"), "no relay is running", 4),
    Row((*_LETTERS, "list", "--relay", "shop"), "no relay called shop", 4),
    Row((*_LETTERS, "list", "--relay", "a/b"), "can't name a relay"),
    Row((*_LETTERS, "list", "3f9a"), "unexpected extra argument"),
    *(Row((*_LETTERS, "list", "--table", text), "--table: ") for text in ("", "(", "[", "*")),
    *(Row((*_LETTERS, "list", "--reason", text), "--reason: ") for text in (")", "a{2,1}")),
    *(Row((*_LETTERS, "list", "--since", text), "--since: ") for text in ("", "soon", "2026-13-01", "-5x")),
    Row((*_LETTERS, "retry", "3f9a", "--all"), "ids and --all are mutually exclusive"),
    Row((*_LETTERS, "drop", "3f9a", "--since", "-1h"), "ids and --since are mutually exclusive"),
    Row((*_LETTERS, "list", "-b", "kafka:9092"), "-b requires --from-topic"),
    Row((*_LETTERS, "list", "--from-topic"), "no dead-letter topic"),
    Row((*_LETTERS, "list", "--from-topic", "-b", "x:1"), "no dead-letter topic"),
    Row((*_LETTERS, "list", "--from-topic", "--dead-letter-topic", "a b"), "--dead-letter-topic: "),
    Row((*_LETTERS, "list", "--from-topic", "--dead-letter-topic", "d", "-b", "x:0"), "-b: "),
    Row((*_LETTERS, "retry", "--all", "--from-topic"), "no relay is running", 4),
)


def rows() -> Iterator[Row]:
    """Yield all rows."""
    for command, needed in COMMANDS.items():
        yield Row((*command, *needed, "--no-such"), "no such option --no-such")
        yield Row((*command, *needed, "-Z"), "no such option -Z")
        if command[0] in _NO_FILES and command != ("config", "validate"):
            yield Row((*command, *needed, "a", "b", "c"), "unexpected extra argument")
    for group in ((), ("sandbox",), ("slots",), ("schema",), ("recording",), ("config",), _LETTERS):
        yield Row((*group, "nothing"), "no such command")
        yield Row((*group, "INFO"), "no such command")
    for option, text in VALUES:
        yield Row(("connect", "--headless", option, text), _place(option))
        if option in _OF_ENDPOINTS:
            yield (
                Row(("replay", "{recording}", option, text), _place(option))
                if option != "-d"
                else Row(("slots", "list", option, text), _place(option))
            )
            if option in ("-b", "-r") or text in _REFUSED_BY_CLIENTS:
                yield Row(("verify", "{recording}", option, text), _place(option))
        elif option in ("-s", "--table", "--publication"):
            yield Row(("doctor", option, text), _place(option))
    yield from (Row(("config", "validate"), "bwtui.toml", file=text) for text in FILES)
    for query in QUERIES:
        yield Row(
            ("recording", "export", "{recording}", "--format", "jsonl", "--where", query), "query, column"
        )
    for command, option in _NUMBER_OPTIONS:
        yield from (Row((*command, option, number), option) for number in NUMBERS)
    for reader in _READERS:
        yield from (Row((*reader, name), "") for name in _NO_RECORDINGS)
    for option in ("--from-lsn", "--to-lsn", "--from-time", "--to-time", "--table"):
        for text in ("(",) if option == "--table" else ("x", "", "0/G"):
            yield Row(("recording", "export", "{recording}", "--format", "jsonl", option, text), option)
    yield from (
        Row(("connect", "--headless"), name, variables=((name, text),)) for name, text in _VARIABLES[:-1]
    )
    yield Row(("config", "show"), "no profile 'nowhere'", variables=_VARIABLES[-1:])
    for name in ("../x", ".x", "a/b", "x" * 64, "a b", "\x1b]0;x\x07"):
        yield from (Row((command, name), "can't name a relay") for command in ("attach", "status", "stop"))
        yield Row(("snapshot", "orders", "--relay", name), "can't name a relay")
        yield Row(("slots", "drop", name), "can't name a replication slot")
    yield from _MODES
    yield from _OF_LETTERS


def _place(option: str) -> str:
    return f"error: {option}: "
