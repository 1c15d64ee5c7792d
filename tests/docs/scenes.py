"""Differences between a test machine and a reader's: the services' addresses, and commands that can't run."""

import re
import shlex
from dataclasses import dataclass, field

# -- replacements for a reader's own values ----------------------------------------------------------------

#: Addresses and names of a reader's services on the pages, and the names of the test's replacements.
REPLACED = {
    '"host=db dbname=shop user=cdc"': "{database}",
    '"host=db dbname=shop"': "{database}",
    "-d …": "-d {database}",
    "kafka:9092": "{broker}",
    "-b …": "-b {broker}",
    "http://registry:8081": "{registry}",
    "-r …": "-r {registry}",
    "-p new": "-p {prefix}_new",
    # The omitted options are those of the relay further up on the page.
    "connect …": "connect -s shop",
    "make ": "make -C {root} -o .venv/installed ",
    # The only address that every machine has.
    "10.0.0.5:9847": "127.0.0.2:{port}",
    "9847": "{port}",
}
#: Input for screens and prompts: the texts to wait for, and the keys to type.
TYPED = {
    r"make \S+ \S+ -o .venv/installed demo$": ("STREAMING=q", "Stop the relay=Enter"),
    r"bwtui demo$": ("STREAMING=q", "Stop the relay=Enter"),
    r"bwtui connect(?!.*--(detach|headless|until))": ("STREAMING=q", "Stop the relay=s"),
    r"bwtui attach": ("STREAMING=q", "Detach=d"),
    r"bwtui open": ("Tables=q",),
    r"bwtui replay (?!.*--(dry-run|yes))": ("[y/N]=yEnter",),
    r"bwtui slots drop debezium": ("debezium=debeziumEnter",),
}
#: Commands that run in the foreground until SIGTERM, and the output to wait for before it.
FOREGROUND = {
    r"bwtui connect.*--headless(?!.*--until)": "streaming",
    r"bwtui record ": "streaming",
}


def replaced(command: str, places: dict[str, str]) -> str:
    """Return a command of a page with the test's values, and with typed input if it needs some."""
    for theirs, ours in REPLACED.items():
        command = command.replace(theirs, ours.format(**places))
    for expression, steps in TYPED.items():
        if re.match(expression, command):
            return f"python -m tests.docs.typed {shlex.join(steps)} -- {command}"
    for expression, text in FOREGROUND.items():
        if re.match(expression, command):
            return f'python -m tests.docs.foreground "{text}" {command}'
    return command


# -- prerequisites of a page ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scene:
    """The prerequisites of a page, and its commands' effects beyond the shown output."""

    #: Shell lines to run before a command, by the command's beginning.
    before: dict[str, str] = field(default_factory=dict)
    #: Exit codes other than 0 that the page does not show by "echo $?".
    codes: dict[str, int] = field(default_factory=dict)
    #: Words that a command's output must contain.
    says: dict[str, str] = field(default_factory=dict)
    #: Expressions for words of the shown output that differ in every run.
    varies: tuple[str, ...] = ()
    #: The page starts its own services.
    alone: bool = False


_ORDERS = (
    'psql -q "$BWTUI_POSTGRES" -c "create table orders (id int primary key, status text); '
    "insert into orders select n, 'new' from generate_series(1, 9) n\""
)
SCENES = {
    "README.md": Scene(
        before={
            "bwtui connect -d": _ORDERS,
            "bwtui verify --database -d": "bwtui connect --detach",
        },
        says={"bwtui verify --database": "clean"},
    ),
    "command-line.md": Scene(
        before={
            "bwtui connect -d": _ORDERS,
            # While no relay runs: the next relay records it.
            "bwtui connect … --record ./shop": 'psql -q "$BWTUI_POSTGRES" -c '
            "\"update orders set status = 'paid' where id < 4\"",
            "bwtui verify --database -d": "bwtui connect -s shop --detach",
            "bwtui verify before/": "cp -r shop before; cp -r shop after",
            "bwtui replay ./shop --only-missing": "bwtui verify ./shop --json > report.json",
        },
        # No message is missing here.
        codes={"bwtui replay ./shop --only-missing": 2},
        says={
            "bwtui verify ./shop": "clean",
            "bwtui verify --database": "clean",
            "bwtui verify before/": "clean",
            "bwtui recording check": "clean",
            "bwtui replay ./shop --only-missing": "the report lists no missing messages",
        },
    ),
    "replay.md": Scene(
        before={
            "bwtui verify ./shop": f"{_ORDERS} && "
            "bwtui connect -s shop --headless --until-caught-up --record shop && "
            'python -m tests.docs.lost "$BWTUI_BROKER" "$BWTUI_TOPIC_PREFIX.orders" 2',
        },
        codes={"bwtui verify ./shop": 1},
        says={"bwtui replay ./shop": "the recording contains 2 of 2 missing messages"},
    ),
    "index.md": Scene(
        # A reader reaches this command only after the relay has started to stream.
        before={"bwtui status shop": "until bwtui status shop | grep -q streaming; do sleep 0.2; done"},
        says={
            "bwtui verify --database --relay shop": "clean: 1 rows in the tables",
            "bwtui status shop": "streaming",
            "bwtui recording export": '"state":"new"',
        },
        alone=True,
    ),
    "heal.md": Scene(
        before={
            "bwtui verify": f"{_ORDERS} && bwtui connect -s shop --detach",
            # The heading above says that the slot is lost, so drop it.
            "bwtui connect": "bwtui stop shop && "
            'psql -q "$BWTUI_POSTGRES" -c "select pg_drop_replication_slot(\'shop\')"',
        },
        says={"bwtui verify": "clean", "bwtui repair --relay shop --yes": "clean"},
    ),
    "debezium.md": Scene(
        before={
            "bwtui doctor": f"{_ORDERS} && "
            'psql -q "$BWTUI_POSTGRES" -c '
            "\"select pg_create_logical_replication_slot('debezium', 'pgoutput')\"",
        },
        says={"bwtui slots list": "debezium", "bwtui verify": "clean: 9 rows"},
    ),
    "walkthrough.md": Scene(
        codes={"bwtui verify incident --json": 1},
        # The last writes of the shop.
        varies=(
            r"(insert|update|delete) public\.orders",
            r"differs: [^·]+",
            r"in gift[\w, ]*|in (note|status|total)[\w, ]*",
        ),
        alone=True,
    ),
}


# -- commands that can't be run ------------------------------------------------------------------------------

#: Beginnings of the commands that aren't run, by page, and the reason. The test checks that a shell can parse
#: each one, and that the files of the repository that it names exist.
CANNOT: dict[str, dict[str, str]] = {
    "README.md": {
        "python3 -m venv .venv": "makes the environment that the test runs in",
    },
    "deploy.md": {
        "install ": "writes into the system's folders",
        "systemctl ": "needs systemd: tests/unit/test_unit_file.py, tests/faults/test_systemd.py",
        "journalctl ": "needs systemd",
        "sudo ": "needs the system's users",
        "make dist": "tests/process/test_dist.py builds the wheel",
        "podman ": "needs images: tests/unit/test_packaging.py has the Containerfile",
        "kubectl ": "needs a cluster: tests/unit/test_packaging.py has the manifests",
    },
    "install.md": {
        "pipx ": "makes an environment of 1 GB: tests/process/test_dist.py has the wheel",
        "pip install -r packaging/relay.txt": "tests/integration/test_without_large_packages.py",
        "pip install --no-deps": "tests/process/test_dist.py has the wheel",
        "pip install './packaging/compiled[checksum]'": "make does it; tests/property/test_compiled.py",
    },
    "consumers.md": {
        "java -jar avro-tools": "tests/consumers/test_consumers.py compiles by it",
        "spark-submit --packages": "tests/consumers/test_query_engines.py runs it",
    },
}

#: Blocks that contain nothing to type, although they have no language: their beginnings, by page.
NO_COMMANDS: dict[str, dict[str, str]] = {
    "README.md": {"PostgreSQL ──": "a diagram"},
    "deploy.md": {"[Service]": "settings of a unit: tests/unit/test_unit_file.py has those that come along"},
    "query.md": {
        "query      =": "the grammar",
        "  table = orders annd": "an error: tests/property/test_query_sql.py",
    },
    "recording-format.md": {"shop/": "a folder"},
}

# -- blocks of other languages -------------------------------------------------------------------------------

#: The program that runs the SQL of each page.
STATEMENTS = {
    "export.md": 'python -c "import duckdb, sys; duckdb.sql(sys.stdin.read())"',
    "incidents.md": 'psql "$BWTUI_POSTGRES"',
}
#: Other checks of blocks, by page and language.
TESTED = {
    ("query.md", "query"): "tests/unit/test_query_docs.py",
    ("recording-format.md", "sql"): "tests/pipeline/test_seal.py",
    ("recording-format.md", "python"): "tests/pipeline/test_seal.py",
}
