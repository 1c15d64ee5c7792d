"""What is different on a machine of tests from a reader's: where services are, and what can't run on it."""

import re
import shlex
from dataclasses import dataclass, field

# -- what stands for a reader's own --------------------------------------------------------------------------

#: The places and names that pages give to a reader's services, and what a test puts there, by its name.
REPLACED = {
    '"host=db dbname=shop user=cdc"': "{database}",
    '"host=db dbname=shop"': "{database}",
    "-d …": "-d {database}",
    "kafka:9092": "{broker}",
    "-b …": "-b {broker}",
    "http://registry:8081": "{registry}",
    "-r …": "-r {registry}",
    "-p new": "-p {prefix}_new",
    # What else was said of this relay further up.
    "connect …": "connect -s shop",
    "make ": "make -C {root} -o .venv/installed ",
    # On this machine's only address that is sure.
    "10.0.0.5:9847": "127.0.0.2:{port}",
    "9847": "{port}",
}
#: What is typed into screens and questions: texts that are waited for, and keys.
TYPED = {
    r"make \S+ \S+ -o .venv/installed demo$": ("STREAMING=q", "Stop the relay=Enter"),
    r"bwtui demo$": ("STREAMING=q", "Stop the relay=Enter"),
    r"bwtui connect(?!.*--(detach|headless|until))": ("STREAMING=q", "Stop the relay=s"),
    r"bwtui attach": ("STREAMING=q", "Detach=d"),
    r"bwtui open": ("Tables=q",),
    # The walkthrough's is a script's, which is refused.
    r"bwtui replay (?!incident|.*--(dry-run|yes))": ("[y/N]=yEnter",),
    r"bwtui slots drop debezium": ("debezium=debeziumEnter",),
}
#: What goes on in the foreground until it is told to end, and what it says before it is.
FOREGROUND = {
    r"bwtui connect.*--headless(?!.*--until)": "streaming",
    r"bwtui record ": "streaming",
}


def replaced(command: str, places: dict[str, str]) -> str:
    """Return a command of a page with a test's places in it, and with hands where it asks for some."""
    for theirs, ours in REPLACED.items():
        command = command.replace(theirs, ours.format(**places))
    for expression, steps in TYPED.items():
        if re.match(expression, command):
            return f"python -m tests.docs.typed {shlex.join(steps)} -- {command}"
    for expression, text in FOREGROUND.items():
        if re.match(expression, command):
            return f'python -m tests.docs.foreground "{text}" {command}'
    return command


# -- what a page needs beforehand ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Scene:
    """What a page takes for granted, and what its commands say beyond what it shows."""

    #: Shell lines by the beginning of the command that they run before.
    before: dict[str, str] = field(default_factory=dict)
    #: Exit codes other than 0 that the page does not show by "echo $?".
    codes: dict[str, int] = field(default_factory=dict)
    #: Words that a command's output has.
    says: dict[str, str] = field(default_factory=dict)
    #: Expressions for words of the shown output that are others in every run.
    varies: tuple[str, ...] = ()
    #: It starts services of its own.
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
            # While nobody reads: the next relay records it.
            "bwtui connect … --record ./shop": 'psql -q "$BWTUI_POSTGRES" -c '
            "\"update orders set status = 'paid' where id < 4\"",
            "bwtui verify --database -d": "bwtui connect -s shop --detach",
            "bwtui verify before/": "cp -r shop before; cp -r shop after",
            "bwtui replay ./shop --only-missing": "bwtui verify ./shop --json > report.json",
        },
        # Nothing is.
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
        # Who reads takes longer to get there.
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
            # Below "The slot is lost": it is.
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
        codes={"bwtui verify incident --json": 1, "bwtui replay incident --only-missing report.json$": 2},
        # What the shop had just done.
        varies=(
            r"(insert|update|delete) public\.orders",
            r"differs: [^·]+",
            r"in gift[\w, ]*|in (note|status|total)[\w, ]*",
        ),
        alone=True,
    ),
}


# -- what can't be run ---------------------------------------------------------------------------------------

#: By page, the beginnings of commands that aren't run, and why. Of each is seen that a shell can read it, and
#: that the files of the repository that it names are there.
CANNOT: dict[str, dict[str, str]] = {
    "README.md": {
        "python3 -m venv .venv": "makes the environment that the test runs in",
    },
    "deploy.md": {
        "install ": "writes into the system's folders",
        "systemctl ": "needs systemd: tests/unit/test_unit_file.py, tests/faults/test_systemd.py",
        "journalctl ": "needs systemd",
        "sudo ": "needs the system's users",
        "make dist": "tests/unit/test_dist.py builds the wheel",
        "podman ": "needs images: tests/unit/test_packaging.py has the Containerfile",
        "kubectl ": "needs a cluster: tests/unit/test_packaging.py has the manifests",
    },
    "install.md": {
        "pipx ": "makes an environment of 1 GB: tests/unit/test_dist.py has the wheel",
        "pip install -r packaging/relay.txt": "tests/integration/test_without_large_packages.py",
        "pip install --no-deps": "tests/unit/test_dist.py has the wheel",
        "pip install './packaging/compiled[checksum]'": "make does it; tests/property/test_compiled.py",
    },
    "consumers.md": {
        "java -jar avro-tools": "tests/consumers/test_consumers.py compiles by it",
        "spark-submit --packages": "tests/consumers/test_query_engines.py runs it",
    },
}

#: Blocks that are nothing to type, though no language says so: by page, how they begin.
NO_COMMANDS: dict[str, dict[str, str]] = {
    "README.md": {"PostgreSQL ──": "a diagram"},
    "audit.md": {"messages = matched": "the sums of an audit"},
    "deploy.md": {"[Service]": "settings of a unit: tests/unit/test_unit_file.py has those that come along"},
    "install.md": {"bwtui: error: ": "an error: tests/unit/test_missing_packages.py"},
    "query.md": {
        "query      =": "the grammar",
        "  table = orders annd": "an error: tests/property/test_query_sql.py",
    },
    "recording-format.md": {
        "shop/": "a folder",
        "length u32 |": "the layout of a block",
        "batch u64 |": "the layout of a batch",
    },
}

# -- blocks of other languages -------------------------------------------------------------------------------

#: By page, what takes its SQL.
STATEMENTS = {
    "export.md": 'python -c "import duckdb, sys; duckdb.sql(sys.stdin.read())"',
    "incidents.md": 'psql "$BWTUI_POSTGRES"',
}
#: By page and language, what else looks at a block.
TESTED = {
    ("query.md", "query"): "tests/unit/test_query_docs.py",
    ("recording-format.md", "sql"): "tests/pipeline/test_seal.py",
    ("recording-format.md", "python"): "tests/pipeline/test_seal.py",
    ("consumers.md", "properties"): "tests/consumers/test_jdbc_sink.py",
    ("consumers.md", "python"): "tests/consumers/test_consumers.py",
}
