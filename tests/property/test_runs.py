"""The C extension takes consecutive rows at once; the results are the same as without it."""

import re
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bwtui.encode import avro, compiled_encoders
from bwtui.model.position import Position
from bwtui.pgoutput.messages import UNCHANGED, Field
from bwtui.recording import payloads
from bwtui.recording.reader import open_recording
from bwtui.relay.rows import batch as relay_batch
from bwtui.relay.stream import row_handler
from bwtui.relay.stream.transactional_stream import DuplicateFilter
from tests.compiled_twin import COMPILER, built
from tests.scripted_relay import ScriptedRelay, table

pytestmark = pytest.mark.skipif(not COMPILER, reason="what is compiled can't be there without a compiler")

TABLES = [table(1, "one", ["id", "note"], identity="d"), table(2, "two", ["id", "note"])]
#: The relay excludes it.
OTHER = table(3, "other", ["id"])
WIDER = replace(TABLES[0], columns=(*TABLES[0].columns, replace(TABLES[0].columns[1], name="more")))

#: The last value is not valid text, so its first occurrence switches to a schema that allows such bytes.
values = st.sampled_from([b"", b"x", b"y" * 40, b"z" * 3_000, None, b"\xff"])
rows = st.tuples(st.sampled_from([b"1", b"2", b"3"]), values)
steps = st.one_of(
    st.tuples(st.just("insert"), st.sampled_from([0, 0, 0, 1]), rows),
    st.tuples(st.just("update"), st.sampled_from([0, 0, 0, 1]), rows),
    st.tuples(st.sampled_from(["unchanged", "moved", "delete"]), st.sampled_from([0, 1]), rows),
    st.tuples(
        st.sampled_from(["commit", "keepalive", "announce", "wider", "left out", "turn"]), st.just(0), rows
    ),
)


class Playing:
    """A relay over a generated stream, with or without the C extension."""

    def __init__(
        self, folder: Path, stack: ExitStack, package: Any, budget: int, rows: int = 1_000, **settings: Any
    ) -> None:
        patched = stack.enter_context(pytest.MonkeyPatch.context())
        patched.setattr(avro, "twin", partial(compiled_encoders.twin, package=package))
        patched.setattr(payloads, "_compiled", package and package.pack)
        for module in (row_handler, relay_batch):
            patched.setattr(module, "BATCH_ROWS", rows)
        self.relay = relay = ScriptedRelay(folder, **settings)
        stack.callback(relay.close)
        patched.setattr(relay.context.output.samples, "refill", lambda: None)
        relay.context.output.samples.budget = budget

    def play(self, steps: Sequence[Any]) -> None:
        """Write the steps and relay them; a step can end the turn."""
        relay, first = self.relay, TABLES[0]
        relay.begin()
        for relation in (*TABLES, OTHER):
            relay.announce(relation)
        for step, number, row in steps:
            relation = first if number == 0 else TABLES[1]
            whole: list[Field] = [*row, b"more"][: len(relation.columns)]
            if step in ("insert", "delete"):
                getattr(relay, step)(relation, whole)
            elif step in ("update", "unchanged", "moved"):
                new = [whole[0], UNCHANGED, *whole[2:]] if step == "unchanged" else whole
                old = [b"9", *whole[1:]] if step == "moved" else None
                relay.update(relation, new, old)
            elif step == "commit":
                relay.commit()
                relay.begin()
            elif step == "keepalive":
                relay.frames.append(b"k" + bytes(17))
            elif step == "announce":
                relay.announce(first)
            elif step == "wider":
                # The catalog shows it immediately.
                relay.play()
                first = WIDER
                relay.announce(first)
            elif step == "left out":
                relay.insert(OTHER, [b"1"])
            else:
                relay.play()
        relay.commit()
        relay.play()

    def found(self) -> list[Any]:
        """Return the results."""
        relay = self.relay
        tables = {
            name: (one.inserts, one.updates, one.deletes, one.messages, one.bytes, one.errors)
            for name, one in relay.report.tables.items()
        }
        letters = [(error.kind, error.table, error.message) for error in relay.report.errors()]
        sampled = [(one.operation, one.key, one.lsn) for one in relay.context.output.samples.after(0)]
        return [relay.sink.delivered, tables, letters, sampled, relay.report.rows_read]


def recorded(folder: Path) -> list[Any]:
    with closing(open_recording(folder)) as read:
        # The time of recording differs.
        return [re.sub(r"\b(received|noted)=\d+", "", repr(change)) for change in read.changes()]


@given(
    steps=st.lists(steps, max_size=25),
    budget=st.sampled_from([0, 0, 2]),
    at_once=st.sampled_from([1, 2, 3, 1_000]),
    record=st.booleans(),
    more=st.sampled_from([{}, {}, {"headers": True}]),
)
def test_what_comes_of_a_stream_is_the_same(
    steps: list[Any], budget: int, at_once: int, record: bool, more: dict[str, Any]
) -> None:
    every = []
    for package in (built(), None):
        with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
            settings = {
                "record": record,
                "on_error": "log",
                "toast": "error",
                "exclude_tables": ("public.other",),
                **more,
            }
            playing = Playing(Path(place), stack, package, budget, at_once, **settings)
            playing.play(steps)
            found = playing.found()
            stack.close()
            every.append([found, recorded(playing.relay.folder) if record else None])
    assert every[0] == every[1]


@pytest.mark.parametrize("package", [True, False], ids=["compiled", "python"])
def test_what_is_in_kafka_already_is_passed_over_where_nobody_wants_samples(
    package: bool, tmp_path: Path
) -> None:
    """Skipped rows are not sent, and no route is built for them."""
    with ExitStack() as stack:
        playing = Playing(tmp_path, stack, built() if package else None, 0, record=False)
        relay = playing.relay
        relay.connect()
        assert relay._streaming is not None
        position = Position("", "", "", lsn=1_020, ordinal=2)
        session = relay._streaming
        session.filters.append(DuplicateFilter(session.rows, session.transaction, position, relay.recorder))
        for wanted in (0, 1, 4):
            relay.begin()
            relay.announce(TABLES[0])
            for number in range(3):
                relay.insert(TABLES[0], [b"%d" % number, b"x"])
            relay.commit()
            relay.play()
            assert len(relay.sink.delivered) == wanted
            assert bool(relay.registry.asked) == bool(wanted)
