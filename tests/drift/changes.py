"""The changes of a drift campaign, as a list: what happens, when it may happen, and what the relay must do.

A change is a generator. It yields between its steps; the campaign decides what happens there: nothing, the
relay catches up, its polls pass, or the relay is killed or started. Each change has tables of its own, made
before the first snapshot. Every name in braces is replaced: {t} by the change's table with its schema, {b} by
the table's name alone, {p} by the publication.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Literal

from tests.database import session
from tests.drift.comparison import Table
from tests.drift.stand import Publication, Stand, writes
from tests.faults.administration import configure_topic, empty_topic
from tests.faults.relays import Relay

#: "closed": topics equal tables in the end, without help; "named": the status says which tables are not
#: proven, and the command that it names proves them; "refused": the start is refused with exit code 2.
Expected = Literal["closed", "named", "refused"]


class When(Enum):
    SNAPSHOT = "during the first snapshot"
    RUNNING = "while the relay runs"
    POLLED = "while the relay runs, with its polls in between"
    BETWEEN_POLLS = "between two polls"
    STOPPED = "while the relay is stopped"
    KILLED = "with kills of the relay"
    STATE_LOST = "while the relay is stopped and loses its state folder"


_LIVE = (When.RUNNING, When.POLLED, When.BETWEEN_POLLS, When.STOPPED, When.KILLED)
_ANY = (When.SNAPSHOT, *_LIVE)
_EVER = (*_ANY, When.STATE_LOST)


@dataclass(slots=True)
class Scene:
    """One change's view of the stand."""

    stand: Stand
    dice: random.Random
    #: The table with its schema.
    table: str
    drawn: "Drawn"

    @property
    def topic(self) -> str:
        """The topic of the table."""
        schema, name = self.table.split(".")
        return Table(schema, name, ()).topic(self.stand.relay.name)

    def run(self, *statements: str) -> None:
        """Run statements with the names replaced, each in a transaction of its own."""
        self.stand.run(*map(self.named, statements))

    def named(self, statement: str) -> str:
        """Replace the names in braces."""
        return statement.format(t=self.table, b=self.table.split(".")[1], p=self.stand.publication)

    def write(self, table: str = "") -> None:
        """Insert, update and delete rows of the table, and give rows other keys."""
        # The writer would take the same keys.
        with self.stand.writer.paused():
            for _ in range(self.dice.randint(1, 3)):
                self.stand.run(f"begin; {'; '.join(writes(table or self.table, self.dice))}; commit")


Steps = Callable[[Scene], Iterator[None]]

ROWS = "insert into {t} select g, g, 'row ' || g from generate_series(1, 200) g"
#: The relay may have added it, or recreated the publication.
JOIN = "do $$ begin alter publication {p} add table {t}; exception when duplicate_object then null; end $$"
PLAIN = ("create table {t} (id int primary key, n int not null unique, v text)", ROWS)
PARTITIONED = (
    "create table {t} (id int primary key, n int not null, v text) partition by range (id)",
    "create table {t}_low partition of {t} for values from (minvalue) to (150)",
    "create table {t}_high partition of {t} for values from (150) to (maxvalue)",
    ROWS,
)

#: A table whose partitions leave room for another one.
YOUNG = (PARTITIONED[0], PARTITIONED[1].replace("150", "100000"), ROWS)
YOUNG_PARTITION = "create {} table {{t}}_young partition of {{t}} for values from (100000) to (200000)"
YOUNG_ROWS = "insert into {t} select g, g, 'young' from generate_series(100000, 100020) g"
SECOND = "insert into {t} select g, g, 'second ' || g from generate_series(150, 250) g"
#: Creates a partitioned table around an existing one.
AROUND = (
    f"begin; {PARTITIONED[0]}; alter table {{t}} attach partition {{t}}_src"
    " for values from (minvalue) to (maxvalue); commit"
)


@dataclass(frozen=True, slots=True)
class Change:
    """One kind of change."""

    name: str
    steps: Steps
    expected: Expected = "named"
    #: The statements that create its table.
    tables: tuple[str, ...] = PLAIN
    schema: str = "public"
    whens: tuple[When, ...] = _LIVE
    #: The kinds of publication under which it makes sense.
    publications: tuple[Publication, ...] = ("list", "all", "schemas")
    #: The first major version of PostgreSQL that can do it.
    since: int = 14
    weight: int = 2
    #: True if it concerns all tables of the publication.
    is_wide: bool = False
    #: True if it makes sense only with a relay that does not capture tables without a key.
    is_keyed: bool = False
    #: Options that the relay needs for it.
    options: tuple[str, ...] = ()
    #: Options of a start that is refused, and the words for both values that the error has to name.
    settings: tuple[str, ...] = ()
    says: tuple[str, ...] = ()

    def fits(self, publication: Publication, options: tuple[str, ...]) -> bool:
        """Return whether it makes sense with this kind of publication and these options of the relay."""
        if self.is_keyed and options:
            return False
        return publication in self.publications and set(self.options) <= set(options)


@dataclass(frozen=True, slots=True)
class Drawn:
    """A change as it was drawn: when it happens, and the seed of its dice."""

    change: Change
    when: When
    seed: int

    def __str__(self) -> str:
        return f"{self.change.name}, {self.when.value}"


CHANGES: list[Change] = []


def change(name: str, **more: object) -> Callable[[Steps], Steps]:
    """Add the decorated generator to the list."""

    def added(steps: Steps) -> Steps:
        CHANGES.append(Change(name, steps, **more))  # type: ignore[arg-type]
        return steps

    return added


# -- topics --------------------------------------------------------------------------------------------------


@change("topic recreated", whens=_EVER, weight=4)
def topic_recreated(at: Scene) -> Iterator[None]:
    """Another client deletes the topic, and recreates it with some number of partitions."""
    at.stand.delete_topic(at.topic)
    yield
    at.stand.make_topic(at.topic, at.dice.randint(1, 5))
    yield
    at.write()


@change("topic deleted", whens=_ANY)
def topic_deleted(at: Scene) -> Iterator[None]:
    """Another client deletes the topic; only the relay recreates it."""
    at.stand.delete_topic(at.topic)
    yield
    at.write()


@change("young topic recreated", tables=(PLAIN[0],), whens=(When.BETWEEN_POLLS, When.RUNNING, When.KILLED))
def young_topic_recreated(at: Scene) -> Iterator[None]:
    """The topic is replaced right after the first rows, before any poll of it."""
    # The writer may have written some of them.
    at.run(f"{ROWS} on conflict do nothing")
    at.stand.catch_up()
    at.stand.delete_topic(at.topic)
    at.stand.make_topic(at.topic, at.dice.randint(1, 5))
    yield
    at.write()


@change("partitions added", whens=_ANY)
def partitions_added(at: Scene) -> Iterator[None]:
    """The topic gets more partitions, so that keys move among them."""
    at.stand.add_partitions(at.topic, at.dice.randint(1, 4))
    yield
    at.write()
    at.run("update {t} set v = 'after'")


@change("records deleted")
def records_deleted(at: Scene) -> Iterator[None]:
    """Another client deletes all records of the topic, which needs another cleanup policy."""
    configure_topic(at.stand.services, at.topic, "cleanup.policy", "compact,delete")
    empty_topic(at.stand.admin, at.topic)
    yield
    configure_topic(at.stand.services, at.topic, "cleanup.policy", "compact")
    at.write()


def relay_of_another_database(at: Scene) -> Relay:
    """Start a relay that sends a table of the same name in a different database to the same topic."""
    other = at.stand.other_database()
    with session(other) as opened:
        for statement in PLAIN[0], "insert into {t} select g, g, 'theirs' from generate_series(150, 250) g":
            opened.run(at.named(statement))
    return at.stand.another_relay(other)


def end(relay: Relay) -> None:
    """End another relay, once it has sent everything unless it was refused."""
    if relay.has_ended:
        relay.wait_ended()
    else:
        relay.wait_caught_up()
    relay.close()


@change("a topic of two databases", whens=(When.RUNNING, When.STOPPED, When.KILLED))
def two_databases(at: Scene) -> Iterator[None]:
    """The relay of another database writes into the same topic."""
    relay = relay_of_another_database(at)
    yield
    end(relay)
    yield
    at.write()


@change("topic older than its table", tables=(), whens=(When.RUNNING, When.STOPPED, When.KILLED))
def older_topic(at: Scene) -> Iterator[None]:
    """A new table gets a topic with rows of another database."""
    end(relay_of_another_database(at))
    yield
    at.run(PLAIN[0], SECOND)
    yield


# -- publications --------------------------------------------------------------------------------------------


@change("left the publication", publications=("list",), whens=_EVER, weight=4)
def left_publication(at: Scene) -> Iterator[None]:
    """The table leaves the publication, is written, and returns."""
    at.run("alter publication {p} drop table {t}")
    yield
    at.write()
    yield
    at.run(JOIN)
    at.write()


@change(
    "schema left the publication", publications=("schemas",), whens=_ANY, since=15, weight=4, is_wide=True
)
def schema_left(at: Scene) -> Iterator[None]:
    """The publication loses the schema, and regains it."""
    at.run("alter publication {p} drop tables in schema public")
    yield
    at.write()
    yield
    at.run("alter publication {p} add tables in schema public")
    at.write()


@change("publish = 'insert' and back", whens=_ANY, is_wide=True)
def inserts_alone(at: Scene) -> Iterator[None]:
    """The publication publishes inserts alone for a while."""
    at.run("alter publication {p} set (publish = 'insert')")
    yield
    at.write()
    yield
    at.run("alter publication {p} set (publish = 'insert, update, delete, truncate')")
    at.write()


@change("row filter set and removed", publications=("list",), whens=_ANY, since=15)
def row_filter(at: Scene) -> Iterator[None]:
    """The publication has a row filter for a while."""
    back = "alter publication {p} drop table {t}; alter publication {p} add table {t}"
    at.run(f"begin; {back} where (id % 3 = 0); commit")
    yield
    at.write()
    yield
    at.run(f"begin; {back}; commit")
    at.write()


@change("column list set and removed", publications=("list",), whens=_ANY, since=15)
def column_list(at: Scene) -> Iterator[None]:
    """The publication has a list of columns for a while."""
    back = "alter publication {p} drop table {t}; alter publication {p} add table {t}"
    at.run(f"begin; {back} (id, n); commit")
    yield
    at.write()
    yield
    at.run(f"begin; {back}; commit")
    at.write()


@change("partition root off and on", tables=PARTITIONED, is_wide=True)
def via_root(at: Scene) -> Iterator[None]:
    """The publication sends partitions as tables of their own for a while."""
    at.run("alter publication {p} set (publish_via_partition_root = false)")
    yield
    at.write()
    yield
    at.run("alter publication {p} set (publish_via_partition_root = true)")
    at.write()


# -- tables --------------------------------------------------------------------------------------------------


@change("moved to another schema and back")
def moved_and_back(at: Scene) -> Iterator[None]:
    """The table is in another schema for a while."""
    at.run("alter table {t} set schema extra")
    yield
    at.write(at.named("extra.{b}"))
    yield
    at.run("alter table extra.{b} set schema public")
    at.write()


@change("moved to another schema")
def moved(at: Scene) -> Iterator[None]:
    """The table gets another schema, and with it another topic, which has none of its rows."""
    at.run("alter table {t} set schema extra")
    yield
    at.write(at.named("extra.{b}"))


@change(
    "moved into the published schema",
    publications=("schemas",),
    schema="apart",
    tables=("create schema if not exists apart", *PLAIN),
    since=15,
)
def moved_in(at: Scene) -> Iterator[None]:
    """A table with rows enters the publication by its schema."""
    at.run("alter table {t} set schema public")
    yield
    at.write(at.named("public.{b}"))


@change("set logged", tables=("create unlogged table {t} (id int primary key, n int not null, v text)", ROWS))
def set_logged(at: Scene) -> Iterator[None]:
    """An unlogged table with rows becomes a logged one."""
    at.write()
    at.run("alter table {t} set logged")
    yield
    at.write()


@change("unlogged and logged again", publications=("all", "schemas"))
def unlogged_for_a_while(at: Scene) -> Iterator[None]:
    """A table is unlogged for a while."""
    at.run("alter table {t} set unlogged")
    yield
    at.write()
    yield
    at.run("alter table {t} set logged")
    at.write()


@change("renamed and back", whens=(*_LIVE, When.STATE_LOST), weight=4)
def renamed_and_back(at: Scene) -> Iterator[None]:
    """The table is renamed, written, and gets its name back."""
    at.run("alter table {t} rename to {b}_away")
    yield
    at.write(at.named("{t}_away"))
    yield
    at.run("alter table {t}_away rename to {b}")
    at.write()


@change(
    "schema renamed and back",
    schema="apart",
    tables=("create schema if not exists apart", *PLAIN),
    publications=("list", "all"),
)
def schema_renamed(at: Scene) -> Iterator[None]:
    """The schema of the table is renamed, the table is written, and the schema gets its name back."""
    at.run("alter schema apart rename to elsewhere")
    yield
    at.write(at.named("elsewhere.{b}"))
    yield
    at.run("alter schema elsewhere rename to apart")
    at.write()


@change("two tables swap names", tables=(*PLAIN, "create table {t}_two (like {t} including all)"))
def swapped(at: Scene) -> Iterator[None]:
    """A different table takes the name, as after a copy that was created to change the table."""
    at.run("insert into {t}_two select * from {t} where id < 100")
    yield
    at.run(
        "begin; alter table {t} rename to {b}_tmp; alter table {t}_two rename to {b};"
        " alter table {t}_tmp rename to {b}_two; commit"
    )
    yield
    at.write()


@change("dropped and created", whens=(*_LIVE, When.STATE_LOST), weight=4)
def dropped_and_created(at: Scene) -> Iterator[None]:
    """The table is dropped, and another one of its name has other rows."""
    at.run("drop table {t}")
    yield
    at.run(PLAIN[0], "insert into {t} select g, g, 'second ' || g from generate_series(100, 300) g")
    yield
    at.write()


@change("column dropped and added again")
def column_again(at: Scene) -> Iterator[None]:
    """Every row has an additional empty column; the stream has no change of any row."""
    at.run("alter table {t} drop column v")
    yield
    at.run("alter table {t} add column v text")
    at.write()


@change("column added with a default")
def column_with_default(at: Scene) -> Iterator[None]:
    """All rows get a value; the stream has no change of any row."""
    at.run("alter table {t} add column more int not null default 7")
    yield
    at.write()


@change("column renamed")
def column_renamed(at: Scene) -> Iterator[None]:
    """Earlier rows have the former name in the topic; the stream has no change of any row."""
    at.run("alter table {t} add column more int default 1", "alter table {t} rename column more to other")
    yield
    at.run("alter table {t} rename column other to again")
    at.write()


@change(
    "stored generated column becomes a plain one",
    tables=(
        "create table {t} (id int primary key, n int not null, v text,"
        " g int generated always as (n * 2) stored)",
        ROWS,
    ),
)
def expression_dropped(at: Scene) -> Iterator[None]:
    """A column that PostgreSQL did not publish has its values in no stream."""
    yield
    at.run("alter table {t} alter column g drop expression")
    yield


@change("column renamed and back", tables=(f"{PLAIN[0][:-1]}, more int default 1)", ROWS))
def column_renamed_and_back(at: Scene) -> Iterator[None]:
    """Rows that are written in between have the temporary name in the topic."""
    yield
    at.run("alter table {t} rename column more to other", "update {t} set v = 'x' where id < 50")
    yield
    at.run("alter table {t} rename column other to more")


@change(
    "column type changed without a rewrite", tables=(f"{PLAIN[0][:-1]}, c cidr default '10.0.0.1/32')", ROWS)
)
def type_without_rewrite(at: Scene) -> Iterator[None]:
    """PostgreSQL prints all values differently; the stream has no change of any row."""
    yield
    at.run("alter table {t} alter column c type inet")
    yield


@change("rewritten as it was", expected="closed", weight=1)
def rewritten(at: Scene) -> Iterator[None]:
    """VACUUM FULL and REINDEX store the same rows again."""
    at.run("vacuum full {t}")
    yield
    at.run("reindex table {t}")
    at.write()


@change("column type changed with USING")
def column_rewritten(at: Scene) -> Iterator[None]:
    """All rows are rewritten; the stream has no change of any row."""
    at.run("alter table {t} alter column v type text using v || ' rewritten'")
    yield
    at.write()


@change("truncated", whens=(*_LIVE, When.STATE_LOST), weight=1)
def truncated(at: Scene) -> Iterator[None]:
    """The table is truncated, and written again."""
    at.run("truncate {t}")
    yield
    at.run("insert into {t} select g, g, 'after' from generate_series(50, 80) g")


@change("written without triggers as a replica", weight=1, expected="closed")
def as_replica(at: Scene) -> Iterator[None]:
    """A session writes with session_replication_role = replica; the stream has its changes all the same."""
    with at.stand.writer.paused():
        at.run(f"set session_replication_role = replica; {'; '.join(writes(at.table, at.dice))}")
    yield
    at.write()


# -- keys ----------------------------------------------------------------------------------------------------


@change("another primary key", weight=4)
def another_key(at: Scene) -> Iterator[None]:
    """The primary key becomes one of another column."""
    at.run("begin; alter table {t} drop constraint {b}_pkey; alter table {t} add primary key (n); commit")
    yield
    at.write()


@change("a wider primary key")
def wider_key(at: Scene) -> Iterator[None]:
    """The primary key gets another column."""
    at.run("begin; alter table {t} drop constraint {b}_pkey; alter table {t} add primary key (id, n); commit")
    yield
    at.write()


@change("another primary key and back")
def another_key_and_back(at: Scene) -> Iterator[None]:
    """The primary key is that of a different column for a while."""
    at.run("begin; alter table {t} drop constraint {b}_pkey; alter table {t} add primary key (n); commit")
    yield
    at.write()
    yield
    at.run("begin; alter table {t} drop constraint {b}_pkey; alter table {t} add primary key (id); commit")
    at.write()


@change("replica identity index")
def identity_index(at: Scene) -> Iterator[None]:
    """An index becomes the replica identity, and with it the key."""
    at.run("alter table {t} replica identity using index {b}_n_key")
    yield
    at.write()


@change("replica identity index and back")
def identity_index_and_back(at: Scene) -> Iterator[None]:
    """An index is the replica identity for a while, and rows get other keys meanwhile."""
    yield
    at.run("alter table {t} replica identity using index {b}_n_key")
    at.run("update {t} set id = id + 5000 where id between 160 and 170")
    yield
    at.run("alter table {t} replica identity default")


@change("replica identity full and back", expected="closed")
def identity_full(at: Scene) -> Iterator[None]:
    """The whole row is the replica identity for a while; the key stays."""
    at.run("alter table {t} replica identity full")
    yield
    at.write()
    yield
    at.run("alter table {t} replica identity default")
    at.write()


@change(
    "a table without a key gets one",
    # Without -u a relay does not start while there is such a table.
    tables=(),
    publications=("list",),
    is_keyed=True,
)
def gets_a_key(at: Scene) -> Iterator[None]:
    """A new table has no key, is written, gets a key, and joins."""
    at.run("create table {t} (id int not null, n int not null, v text)", ROWS)
    yield
    at.run("alter table {t} add primary key (id)")
    yield
    at.run(JOIN)
    at.write()


@change(
    "renamed enum label",
    tables=(
        "create type {t}_mood as enum ('sad', 'glad')",
        "create table {t} (id int primary key, n int not null, v text, mood {t}_mood default 'sad')",
        ROWS,
    ),
)
def renamed_label(at: Scene) -> Iterator[None]:
    """All rows with the label have a different text; the stream has no change of any row."""
    at.run("alter type {t}_mood rename value 'sad' to 'blue'")
    yield
    at.write()


@change(
    "renamed enum label in the key",
    tables=(
        "create type {t}_mood as enum ('sad', 'glad')",
        "create table {t} (id int, n int not null, v text, mood {t}_mood default 'sad',"
        " primary key (id, mood))",
        ROWS,
    ),
)
def renamed_label_in_key(at: Scene) -> Iterator[None]:
    """All keys with the label have a different text; the stream has no change of any row."""
    at.run("alter type {t}_mood rename value 'sad' to 'blue'")
    yield
    at.write()


@change(
    "enum label renamed and back",
    tables=(
        "create type {t}_mood as enum ('sad', 'glad')",
        f"{PLAIN[0][:-1]}, mood {{t}}_mood default 'sad')",
        ROWS,
    ),
)
def label_renamed_and_back(at: Scene) -> Iterator[None]:
    """Rows that are written in between have the temporary label in the topic."""
    yield
    at.run("alter type {t}_mood rename value 'sad' to 'blue'", "update {t} set v = 'x' where id < 50")
    yield
    at.run("alter type {t}_mood rename value 'blue' to 'sad'")


@change(
    "attribute of a composite type comes and goes",
    tables=(
        "create type {t}_pair as (a int, b int)",
        f"{PLAIN[0][:-1]}, p {{t}}_pair default '(1,2)')",
        ROWS,
    ),
)
def attribute_and_back(at: Scene) -> Iterator[None]:
    """Rows that are written in between have a different attribute in the topic."""
    yield
    at.run("alter type {t}_pair add attribute c int", "update {t} set v = 'x' where id < 50")
    yield
    at.run("alter type {t}_pair drop attribute c")


# -- partitions ----------------------------------------------------------------------------------------------


@change(
    "partition attached",
    tables=(
        "create table {t} (id int primary key, n int not null, v text) partition by range (id)",
        "create table {t}_low partition of {t} for values from (minvalue) to (150)",
        "create table {t}_high (id int primary key, n int not null, v text)",
        "insert into {t}_low select g, g, 'row ' || g from generate_series(1, 149) g",
        "insert into {t}_high select g, g, 'row ' || g from generate_series(150, 200) g",
    ),
)
def attached(at: Scene) -> Iterator[None]:
    """A table with rows becomes a partition."""
    at.run("insert into {t}_high select g, g, 'more' from generate_series(201, 220) g")
    yield
    at.run("alter table {t} attach partition {t}_high for values from (150) to (maxvalue)")
    yield
    at.write()


@change("partition detached", tables=PARTITIONED)
def detached(at: Scene) -> Iterator[None]:
    """A partition becomes a table of its own, with its rows."""
    at.run("alter table {t} detach partition {t}_high")
    yield
    at.run("update {t} set v = 'low' where id < 10", "update {t}_high set v = 'high' where id > 190")


@change("partition detached and attached", tables=PARTITIONED)
def detached_and_attached(at: Scene) -> Iterator[None]:
    """A partition is a table of its own for a while, and written as such."""
    at.run("alter table {t} detach partition {t}_high")
    yield
    at.run("delete from {t}_high where id between 160 and 170")
    at.run("update {t}_high set v = 'away' where id > 190")
    yield
    at.run("alter table {t} attach partition {t}_high for values from (150) to (maxvalue)")
    at.write()


@change(
    "partition of two levels detached and attached",
    tables=(
        *PARTITIONED[:2],
        "create table {t}_high partition of {t} for values from (150) to (maxvalue) partition by range (id)",
        "create table {t}_high_all partition of {t}_high default",
        ROWS,
    ),
)
def levels_detached(at: Scene) -> Iterator[None]:
    """A partition that has partitions is a table of its own for a while, and written as such."""
    at.run("alter table {t} detach partition {t}_high")
    yield
    at.run("delete from {t}_high where id between 160 and 170")
    yield
    at.run("alter table {t} attach partition {t}_high for values from (150) to (maxvalue)")
    at.write()


@change("partition truncated", tables=PARTITIONED)
def partition_truncated(at: Scene) -> Iterator[None]:
    """One partition loses its rows; the stream may not contain that."""
    at.run("truncate {t}_high")
    yield
    at.write()


@change("partition dropped", tables=PARTITIONED)
def partition_dropped(at: Scene) -> Iterator[None]:
    """A partition is dropped with its rows, as old ones are."""
    at.run("drop table {t}_low")
    yield
    at.run("update {t} set v = 'kept' where id < 160")


@change(
    "unlogged partition",
    tables=(
        *PARTITIONED[:2],
        "create unlogged table {t}_high partition of {t} for values from (150) to (maxvalue)",
        ROWS,
    ),
)
def unlogged_partition(at: Scene) -> Iterator[None]:
    """Write rows of a partition that is in no stream."""
    # The status may have named the statement that ends it, and the campaign followed that.
    at.run("alter table {t}_high set unlogged")
    at.write()
    yield
    at.run("update {t} set v = 'unlogged' where id > 190")


@change(
    "foreign partition",
    tables=(
        "create extension if not exists postgres_fdw",
        "create server if not exists itself foreign data wrapper postgres_fdw"
        " options (dbname '{d}', host '{host}', port '{port}')",
        "create user mapping if not exists for current_user server itself"
        " options (user '{user}', password '{password}')",
        "create schema if not exists remote",
        "create unlogged table remote.{b} (id int primary key, n int not null, v text)",
        # A root with a foreign partition can't have a key.
        "create table {t} (id int, n int not null, v text) partition by range (id)",
        PARTITIONED[1],
        "create foreign table {t}_high partition of {t} for values from (150) to (maxvalue)"
        " server itself options (schema_name 'remote', table_name '{b}')",
        ROWS,
    ),
    publications=("list", "schemas"),
    options=("-u",),
)
def foreign_partition(at: Scene) -> Iterator[None]:
    """Rows are inserted into a partition on another server."""
    # The campaign ends it here.
    at.run(
        "do $$ begin alter table {t} attach partition {t}_high for values from (150) to (maxvalue);"
        " exception when wrong_object_type then null; end $$"
    )
    at.run("insert into {t} select g, g, 'foreign' from generate_series(20000, 20020) g")
    yield
    at.run("insert into {t} select g, g, 'ours' from generate_series(-10, 0) g")


@change("identity of a partition", tables=PARTITIONED)
def partition_identity(at: Scene) -> Iterator[None]:
    """A partition's replica identity is not the root's: an update of the key must not leave the old row."""
    at.run(
        "create unique index {b}_high_n on {t}_high (n)",
        "alter table {t}_high replica identity using index {b}_high_n",
    )
    yield
    at.run("update {t} set id = id + 5000 where id between 160 and 170", "delete from {t} where id = 190")
    yield
    at.write()


@change(
    "identity of a partition and back", tables=(*PARTITIONED, "alter table {t}_high alter n set not null")
)
def partition_identity_and_back(at: Scene) -> Iterator[None]:
    """A partition's replica identity is not the root's for a while, and rows get other keys meanwhile."""
    at.run("create unique index {b}_high_n on {t}_high (n)")
    yield
    at.run("alter table {t}_high replica identity using index {b}_high_n")
    at.run("update {t} set id = id + 5000 where id between 160 and 170")
    yield
    at.run("alter table {t}_high replica identity default")


@change("young partition dropped", tables=YOUNG)
def young_dropped(at: Scene) -> Iterator[None]:
    """A partition comes and goes with its rows."""
    yield
    at.run(YOUNG_PARTITION.format(""), YOUNG_ROWS)
    yield
    at.run("drop table {t}_young")


@change("young partition truncated", tables=YOUNG)
def young_truncated(at: Scene) -> Iterator[None]:
    """A new partition loses its rows."""
    yield
    at.run(YOUNG_PARTITION.format(""), YOUNG_ROWS, "truncate {t}_young")
    yield


@change("young partition was unlogged", tables=YOUNG)
def young_unlogged(at: Scene) -> Iterator[None]:
    """A new partition has rows from before it was a logged one."""
    yield
    at.run(YOUNG_PARTITION.format("unlogged"), YOUNG_ROWS, "alter table {t}_young set logged")
    yield


@change(
    "table attached for a while",
    tables=(
        *YOUNG,
        "create table {t}_other (id int primary key, n int not null, v text)",
        "insert into {t}_other select g, g, 'other' from generate_series(100000, 100020) g",
    ),
)
def attached_for_a_while(at: Scene) -> Iterator[None]:
    """A table is a partition for a while, and written as such."""
    yield
    at.run("alter table {t} attach partition {t}_other for values from (100000) to (200000)")
    at.run("update {t} set v = 'attached' where id >= 100010")
    yield
    at.run("alter table {t} detach partition {t}_other")


# -- new tables ----------------------------------------------------------------------------------------------


@change("young table recreated", tables=())
def young_recreated(at: Scene) -> Iterator[None]:
    """A new table is dropped, and another one of its name has other rows."""
    yield
    at.run(PLAIN[0], ROWS, "drop table {t}", PLAIN[0], SECOND)
    yield


@change("young table dropped and created again", tables=())
def young_again(at: Scene) -> Iterator[None]:
    """A new table is dropped, and one of its name is created later."""
    yield
    at.run(PLAIN[0], ROWS, "drop table {t}")
    yield
    at.run(PLAIN[0], SECOND)


@change(
    "filled table attached to a new root",
    tables=(
        "create table {t}_src (id int primary key, n int not null, v text)",
        ROWS.replace("{t}", "{t}_src"),
    ),
)
def attached_to_new(at: Scene) -> Iterator[None]:
    """A partitioned table is created around a table with rows."""
    yield
    at.run(AROUND)
    yield


@change("young filled table attached to a new root", tables=())
def young_attached_to_new(at: Scene) -> Iterator[None]:
    """A partitioned table is created around a new table with rows."""
    yield
    at.run(PLAIN[0].replace("{t}", "{t}_src"), ROWS.replace("{t}", "{t}_src"), AROUND)
    yield


# -- settings ------------------------------------------------------------------------------------------------


def nothing(at: Scene) -> Iterator[None]:
    """Only write: the change itself is a start with other settings."""
    at.write()
    yield


def _setting(name: str, *settings: str, says: tuple[str, ...]) -> None:
    CHANGES.append(
        Change(name, nothing, "refused", whens=(When.STOPPED,), settings=settings, says=says, weight=1)
    )


_setting("another output format", "-f", "json", says=("avro", "json"))
_setting("another topic prefix", "-p", "other", says=("{prefix}", "other"))
_setting("another namespace", "--namespace", "com.acme", says=("com.acme",))
_setting("another partitioner", "-C", "partitioner=consistent", says=("murmur2", "consistent"))
_setting("another registry", "-r", "{registry}", says=("{registry}", "{old_registry}"))


@change("state folder lost", whens=(When.STATE_LOST,), weight=3, is_wide=True)
def state_lost(at: Scene) -> Iterator[None]:
    """The state folder is lost, and the table is changed meanwhile."""
    if at.stand.mode == "list":
        at.run("alter publication {p} drop table {t}")
    yield
    at.write()
    if at.stand.mode == "list":
        at.run(JOIN)
    yield
    at.write()
