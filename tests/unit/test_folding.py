"""Folding topics to the latest record of each key takes no time per pair of missing key and key."""

import time
from collections.abc import Iterator
from typing import Any, cast

import duckdb
import pytest

from bwtui.audit.canonical_values import Schemas
from bwtui.source.connection import Connection
from bwtui.verify import folding
from bwtui.verify.folding import Fold
from bwtui.verify.tables import ComparedTable, TableShape

_KEYS, _ROWS = 100_000, 20_000


def _refused(number: int) -> str:
    raise AssertionError(number)


def test_missing_keys_in_other_bytes_are_found_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(*_: Any) -> Iterator[list[tuple[str, str, None]]]:
        yield [(f'["{number}"]', "{}", None) for number in range(_ROWS)]

    monkeypatch.setattr(folding, "rows", rows)
    shape = TableShape(ComparedTable("public", "t", "shop.t", ("id",), ("id",)), {"id": ""}, False, True)
    with duckdb.connect() as store:
        fold = Fold(store, {}, Schemas({}, _refused))
        # The first key's original bytes are in the topic, too, but deleted; the second key's are not.
        store.execute(
            """insert into latest
               select 'shop.t', concat('["', i, '"]', chr(1), 'old'), 0, i, 0, 'v'::blob, 'k'::blob
                 from range(?) as r(i)
                where i <> 1
               union all select 'shop.t', '["0"]', 0, ?, 0, null, 'k'::blob
               union all select 'other', concat('["1"]', chr(1), 'old'), 0, 0, 0, 'v'::blob, 'k'::blob""",
            [_KEYS, _KEYS],
        )
        begin = time.monotonic()
        fold.compare(cast(Connection, None), shape, again=False, is_last=False)
        # Comparing pairs takes more than half a minute.
        assert time.monotonic() - begin < 12
        query = "select class, note is not null, count(*) from differing group by all order by all"
        assert store.execute(query).fetchall() == [
            ("extra_key", True, _KEYS - 1),
            ("missing_key", False, 1),
            ("missing_key", True, _ROWS - 1),
        ]


def test_keys_are_counted_at_the_first_fence_as_rows_are() -> None:
    with duckdb.connect() as store:
        fold = Fold(store, {}, Schemas({}, _refused))
        key = """insert into latest select 'shop.t', concat('["', ?, '"]'), 0, 0, 0, 'v'::blob, 'k'::blob"""
        store.execute(key, [1])
        fold.settle(is_first=True)
        store.execute(key, [2])
        fold.settle(is_first=False)
        assert fold.keys == 1
