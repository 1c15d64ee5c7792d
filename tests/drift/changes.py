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
from tests.faults.administration import configure_topic

#: "closed": topics equal tables in the end, without help; "named": the status says which tables are not
#: proven, and the command that it names proves them; "refused": the start is refused with exit code 2.
Expected = Literal["closed", "named", "refused"]


class When(Enum):
    """When a change happens."""

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
#: The relay may have added it, or made the publication again.
JOIN = "do $$ begin alter publication {p} add table {t}; exception when duplicate_object then null; end $$"
PLAIN = ("create table {t} (id int primary key, n int not null unique, v text)", ROWS)
PARTITIONED = (
    "create table {t} (id int primary key, n int not null, v text) partition by range (id)",
    "create table {t}_low partition of {t} for values from (minvalue) to (150)",
    "create table {t}_high partition of {t} for values from (150) to (maxvalue)",
    ROWS,
)


@dataclass(frozen=True, slots=True)
class Change:
    """One kind of change."""

    name: str
    steps: Steps
    expected: Expected = "named"
    #: The statements that make its table.
    tables: tuple[str, ...] = PLAIN
    schema: str = "public"
    whens: tuple[When, ...] = _LIVE
    #: The kinds of publication under which it makes sense.
    publications: tuple[Publication, ...] = ("list", "all", "schemas")
    #: The first major version of PostgreSQL that can do it.
    since: int = 14
    weight: int = 2
    #: Whether it concerns all tables of the publication.
    is_wide: bool = False
    #: Whether it makes sense only where the relay captures no tables without a key.
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
    """Somebody deletes the topic, and makes it again with some number of partitions."""
    at.stand.delete_topic(at.topic)
    yield
    at.stand.make_topic(at.topic, at.dice.randint(1, 5))
    yield
    at.write()


@change("topic deleted", whens=_ANY)
def topic_deleted(at: Scene) -> Iterator[None]:
    """Somebody deletes the topic; only the relay makes it again."""
    at.stand.delete_topic(at.topic)
    yield
    at.write()


@change("young topic recreated", tables=(PLAIN[0],), whens=(When.BETWEEN_POLLS, When.RUNNING, When.KILLED))
def young_topic_recreated(at: Scene) -> Iterator[None]:
    """The topic is replaced right after the first rows, before anybody can have looked at it."""
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
    """Somebody deletes all records of the topic, which needs another cleanup policy."""
    configure_topic(at.stand.services, at.topic, "cleanup.policy", "compact,delete")
    at.stand.delete_records(at.topic)
    yield
    configure_topic(at.stand.services, at.topic, "cleanup.policy", "compact")
    at.write()


@change("a topic of two databases", whens=(When.RUNNING, When.STOPPED))
def two_databases(at: Scene) -> Iterator[None]:
    """The relay of another database writes into the same topic."""
    other = at.stand.other_database()
    with session(other) as opened:
        for statement in PLAIN[0], "insert into {t} select g, g, 'theirs' from generate_series(150, 250) g":
            opened.run(at.named(statement))
    relay = at.stand.another_relay(other)
    yield
    relay.wait_ended() if relay.has_ended else relay.wait_caught_up()
    relay.close()
    yield
    at.write()


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
    """Another table takes the name, as after a copy that was made to change the table."""
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
    """Every row has an empty column after it; the stream has no change of any row."""
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
    """One partition loses its rows; the stream may say nothing of it."""
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
    """Rows of a partition that no stream has are written."""
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
    # So here.
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


# -- settings ------------------------------------------------------------------------------------------------


def nothing(at: Scene) -> Iterator[None]:
    """Write, and no more: the change is a start with other settings."""
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
    """The relay forgets all, and the table is changed meanwhile."""
    if at.stand.mode == "list":
        at.run("alter publication {p} drop table {t}")
    yield
    at.write()
    if at.stand.mode == "list":
        at.run(JOIN)
    yield
    at.write()
