"""Check one segment, and that it follows the segment before it."""

from collections.abc import Callable
from dataclasses import dataclass, field

from bwtui.recording.folder import SegmentPath, open_segment
from bwtui.recording.format.batch import DeliveredRange, unpack_delivery
from bwtui.recording.format.blocks import (
    ENDING,
    TRAILER_SIZE,
    BlockKind,
    DamagedAt,
    JournalBlock,
    SegmentFile,
    SegmentPlace,
    damaged,
    pack_index,
    segment_name,
)
from bwtui.recording.format.digest import digest_of, read_digest
from bwtui.recording.format.statements import (
    Event,
    Foot,
    digest_kind,
    is_sent,
    parse_event,
    parse_foot,
    statement,
)
from bwtui.recording.format.walk import BlockStep, SegmentWalk, durable_damage


@dataclass(slots=True)
class Chain:
    """The expected values for the next segment; None means unknown because of damage."""

    number: int = 0
    recording: str = ""
    previous: str | None = ""
    position: int | None = 0
    next_batch: int | None = 0
    #: Messages in each section of this pass's batches that have no delivery report yet.
    open: dict[int, list[int]] = field(default_factory=dict)
    #: True if all batches of this pass were read, so that a delivery report for an unread batch is an error.
    is_certain: bool = True
    #: The reason why the last segment ended, from its foot; empty if it has none.
    ended: str = ""

    def skip(self) -> None:
        """Note that a segment is missing, so that the next segment's references to it can't be judged."""
        self.previous = self.position = None
        self.lose()

    def lose(self) -> None:
        """Note that some blocks could not be read."""
        self.next_batch = None
        self.is_certain = False


class SegmentCheck:
    """Checks one segment and collects the damage in `damages`."""

    def __init__(self, segment: SegmentPath) -> None:
        """Open the file. Raises OSError."""
        self.name = segment.path.name
        self.number = segment.number
        self.is_finished = segment.is_finished
        self.file = SegmentFile(open_segment(segment.path), self.name)
        self.damages: list[DamagedAt] = []
        #: First and last LSN of each noted gap.
        self.gaps: list[tuple[int, int]] = []
        #: The damage at the torn end of an unfinished segment, if any.
        self.torn: DamagedAt | None = None
        #: Offset of the foot; 0 if unknown, or if anything before it is damaged.
        self.foot_offset = 0
        self.messages = 0
        self.deliveries = 0
        #: True also if the head can't be read, so that no delivery report is taken for an error.
        self._is_sent = True
        self._walk = SegmentWalk(self.name)
        self.totals = self._walk.totals

    def close(self) -> None:
        self.file.close()

    def check(self, chain: Chain, on_read: Callable[[int], None]) -> None:
        """Read the whole segment; call ``on_read`` with the number of bytes read so far."""
        stop = None
        if self.is_finished:
            try:
                stop = self.file.index_offset()
            except DamagedAt as damage:
                self.damages.append(damage)
        end = self._read_blocks(chain, stop, on_read)
        foot = None
        if self.is_finished:
            foot = self._read_ending(end)
        self._follow(chain, foot)

    def _note(self, offset: int, reason: str) -> None:
        self.damages.append(damaged(SegmentPlace(self.name, offset), reason))

    # -- blocks --------------------------------------------------------------------------------------------

    def _read_blocks(self, chain: Chain, stop: int | None, on_read: Callable[[int], None]) -> int:
        """Check every block up to ``stop``, or up to the ending; return the offset where they end."""
        offset, limit = 0, self.file.size if stop is None else stop
        while offset < limit:
            block = None
            try:
                block = self.file.block(offset)
                if block.kind in ENDING and stop is None:
                    return offset
                self._take(self._walk.take(block), chain)
                following: int | None = block.end
            except DamagedAt as damage:
                durable = None
                if not self.is_finished:
                    durable = durable_damage(self.file, damage, self._walk.number)
                    if durable is None:
                        self.torn = damage
                        return offset
                following = self._pass_over(durable or damage, block, chain)
            if following is None:
                return limit
            offset = following
            on_read(offset)
        if offset != limit:
            self._note(limit, "the blocks do not end where the index begins")
        return limit

    def _pass_over(self, damage: DamagedAt, block: JournalBlock | None, chain: Chain) -> int | None:
        """Note the damage unless it follows from earlier damage, and return where to continue."""
        if block is None or not self.damages:
            self.damages.append(damage)
        chain.lose()
        walk, offset = self._walk, damage.place.offset
        if block is not None:
            # The block's checksums match; only its content is wrong.
            walk.number = block.number + 1
            return block.end
        following = self.file.resume(offset + 1, walk.number)
        if following is not None:
            walk.number = self.file.block(following, with_payload=False).number
        return following

    def _take(self, step: BlockStep, chain: Chain) -> None:
        block = step.block
        if block.kind == BlockKind.HEAD:
            self._take_head(chain)
        elif step.batch is not None:
            expected, chain.next_batch = chain.next_batch, step.batch.number + 1
            if expected not in (None, step.batch.number):
                self._note(block.offset, f"it is batch {step.batch.number} instead of batch {expected}")
            sizes = [len(section.keys) for section in step.batch.sections]
            self.messages += sum(sizes)
            if sizes and self._is_sent:
                chain.open[step.batch.number] = sizes
        elif block.kind == BlockKind.DELIVERY:
            self._take_delivery(block, chain)
        elif block.kind in (BlockKind.STATUS, BlockKind.ERROR):
            statement(block, self.name)
        elif block.kind == BlockKind.EVENT:
            self._take_event(parse_event(block, self.name), chain)

    def _take_event(self, event: Event, chain: Chain) -> None:
        if event["event"] == "pass":
            # Messages in flight have their delivery reports recorded at this point, or never will.
            chain.open.clear()
            chain.is_certain = True
        elif event["event"] == "gap":
            self.gaps.append((event["from_lsn"], event["to_lsn"]))

    def _take_head(self, chain: Chain) -> None:
        head = self._walk.context.head
        self._is_sent = is_sent(head)
        for name, actual, expected in (
            ("the digest of the previous segment", head["previous"], chain.previous),
            ("its first change", head["first_position"], chain.position),
            ("its first batch", head["first_batch"], chain.next_batch),
            ("the recording", head["recording"], chain.recording or None),
        ):
            if expected is not None and actual != expected:
                self._note(0, f"it does not follow the previous segment: {name} differs")
        chain.recording = head["recording"]

    def _take_delivery(self, block: JournalBlock, chain: Chain) -> None:
        try:
            delivery = unpack_delivery(block.payload)
        except ValueError:
            self._note(block.offset, "a DELIVERY block can't be parsed")
            return
        self.deliveries += sum(partition >= 0 for partition in delivery.partitions)
        if not _settle(delivery, chain) and chain.is_certain:
            self._note(
                block.offset, f"a DELIVERY block reports messages that batch {delivery.batch} does not have"
            )

    # -- index and foot ------------------------------------------------------------------------------------

    def _read_ending(self, offset: int) -> Foot | None:
        """Check index, transactions and foot against the blocks, and return the foot if it is readable."""
        intact = not self.damages
        blocks: list[JournalBlock] = []
        for number, kind in enumerate(
            (BlockKind.INDEX, BlockKind.TRANSACTIONS, BlockKind.FOOT), self._walk.number
        ):
            try:
                block = self.file.block(offset)
            except DamagedAt as damage:
                self.damages.append(damage)
                following = self.file.resume(offset + 1, number)
                if following is None:
                    return None
                offset, intact = following, False
                continue
            if block.kind != kind or (intact and block.number != number):
                self._note(offset, f"expected a {kind.name} block here")
                return None
            blocks.append(block)
            offset = block.end
        if offset + TRAILER_SIZE != self.file.size:
            self._note(offset, "the segment does not end after its foot")
        foot = self._parse_foot(blocks[-1]) if blocks and blocks[-1].kind == BlockKind.FOOT else None
        if intact and not self.damages and foot is not None:
            self.foot_offset = blocks[-1].offset
            try:
                self._compare(blocks, foot)
            except DamagedAt as damage:
                # Another process is changing the file.
                self.damages.append(damage)
        return foot

    def _parse_foot(self, block: JournalBlock) -> Foot | None:
        try:
            return parse_foot(block, self.name)
        except DamagedAt as damage:
            self.damages.append(damage)
            return None

    def _compare(self, blocks: list[JournalBlock], foot: Foot) -> None:
        index, transactions, end = blocks
        if index.payload != pack_index(self._walk.index):
            self._note(index.offset, "the index differs from the blocks")
        if transactions.payload != self._walk.transactions:
            self._note(transactions.offset, "the list of transactions differs from the frames")
        expected = {
            **self.totals.to_json(),
            digest_kind(foot): read_digest(self.file, foot, end.offset),
            "blocks": len(self._walk.index),
            **self._walk.end(foot["ended"]),
        }
        if "backfill_rows" not in foot:
            # A version without backfills finished this segment.
            del expected["backfill_rows"]
        for name, value in expected.items():
            if foot.get(name) != value:
                self._note(end.offset, f"the foot's {name} differs from the blocks")
        name = segment_name(self.number, self.totals.first_lsn, self.totals.last_lsn)
        if name != self.name:
            self._note(0, f"the file should be named {name}")

    def _follow(self, chain: Chain, foot: Foot | None) -> None:
        """Set the values with which the next segment must begin."""
        chain.number = self.number
        chain.ended = foot["ended"] if foot else ""
        if foot is None:
            chain.skip()
            return
        chain.previous = digest_of(foot)
        chain.position = foot["first_position"] + foot["changes"]
        chain.next_batch = foot["next_batch"]


def _settle(delivery: DeliveredRange, chain: Chain) -> bool:
    """Mark a section as reported; return False if no such section was waiting for its delivery report."""
    sizes = chain.open.get(delivery.batch)
    if sizes is None or delivery.section >= len(sizes):
        return False
    fits = sizes[delivery.section] == len(delivery.partitions) and delivery.first == 0
    sizes[delivery.section] = -1
    if all(size < 0 for size in sizes):
        del chain.open[delivery.batch]
    return fits
