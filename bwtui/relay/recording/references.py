"""What blocks refer to: relations, routes and schemas, each described in a segment before its first use.

A segment is readable on its own. So each segment describes everything again, and numbers its routes from 0:
there are 65,536 numbers. Two routes with the same description share a number, so a reconnect, or a RELATION
that changes nothing, uses up none.
"""

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from bwtui.encode.names import subject_names
from bwtui.pgoutput.messages import Relation
from bwtui.recording.format.blocks import BlockKind
from bwtui.recording.format.relation import pack_relation
from bwtui.recording.segment import OutgoingBlock
from bwtui.relay.recording.json_blocks import route_json
from bwtui.relay.routes.route import TableRoute
from bwtui.relay.run_state import RunState

#: A section refers to its route by a u16.
ROUTES = 1 << 16


class References:
    """Describes what the segment does not contain yet; the relay's main thread owns it."""

    def __init__(self, write: Callable[[OutgoingBlock], object], report: RunState) -> None:
        """``write`` appends one block to the segment."""
        self._write = write
        self._report = report
        #: The relations whose rows may follow, by oid.
        self.relations: dict[int, Relation] = {}
        self._former: Relation | None = None
        #: Numbers by the route's description in the segment.
        self._numbers: dict[tuple[Any, ...], int] = {}
        #: The route of each relation, by oid, that the segment described last: readers use it for changes
        #: that make no message.
        self._newest: dict[int, int] = {}
        #: Subject and id of the schemas that the segment holds.
        self._schemas: set[tuple[str, int]] = set()

    def begin_pass(self) -> None:
        """Forget the relations: PostgreSQL announces them again in every session."""
        self.relations.clear()

    def relation(self, relation: Relation) -> None:
        """Describe a relation from here on, unless the segment has the same description of it."""
        if self.relations.get(relation.oid) != relation:
            self.relations[relation.oid] = relation
            self._write(_block(relation))

    def aside(self, relation: Relation) -> None:
        """Describe a relation as backfilled rows have it, until `back`."""
        self._former = self.relations.get(relation.oid)
        self.relation(relation)

    def back(self) -> None:
        """Restore the description that the stream uses, if the stream has announced the relation."""
        if self._former is not None:
            self.relation(self._former)

    def forget(self, oid: int) -> None:
        """Forget a relation, which is described again before its next row."""
        self.relations.pop(oid, None)

    def begin_segment(self) -> list[OutgoingBlock]:
        """Forget what the previous segment has described; return the first blocks of the next one."""
        self._numbers.clear()
        self._newest.clear()
        self._schemas.clear()
        return [_block(relation) for relation in self.relations.values()]

    def has_room(self, routes: int) -> bool:
        """True if the segment has numbers left for this many routes, even if all of them are new."""
        return len(self._numbers) + routes <= ROUTES

    def number(self, route: TableRoute) -> int:
        """Return the route's number in this segment, and describe it if it is not its relation's newest."""
        relation = route.relation
        name = (relation.oid, relation.namespace, relation.name, route.topic)
        description = (*name, route.key_columns, route.key_schema_id, route.value_schema_id)
        number = self._numbers.setdefault(description, len(self._numbers))
        if self._newest.get(relation.oid) != number:
            self._newest[relation.oid] = number
            self._describe(number, route)
        return number

    def _describe(self, number: int, route: TableRoute) -> None:
        ids = (route.key_schema_id, route.value_schema_id)
        for subject, schema_id in zip(subject_names(route.topic), ids, strict=True):
            if schema_id is None or (subject, schema_id) in self._schemas:
                continue
            entry = self._report.schemas.get((subject, schema_id))
            if entry is not None:
                self._schemas.add((subject, schema_id))
                self._write(OutgoingBlock(BlockKind.SCHEMA, [json.dumps(asdict(entry)).encode()]))
        self._write(OutgoingBlock(BlockKind.ROUTE, [json.dumps(route_json(number, route)).encode()]))


def _block(relation: Relation) -> OutgoingBlock:
    return OutgoingBlock(BlockKind.RELATION, [pack_relation(relation)])
