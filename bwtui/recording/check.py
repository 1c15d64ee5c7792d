"""Check a recording: checksums, the chain of segments, values that can be recomputed, and sealed files.

The check lists each damaged place. It skips what it can't judge because of earlier damage.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from bwtui.errors import DamagedRecording, StateFailed
from bwtui.file_errors import file_failed
from bwtui.recording.blocks import (
    ENDING,
    SUFFIX,
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
from bwtui.recording.folder import (
    SegmentPath,
    existing_segments,
    is_being_written,
    lacks_following_segments,
    open_segment,
    segments,
)
from bwtui.recording.payloads import (
    DeliveredRange,
    Event,
    Foot,
    digest_kind,
    is_sent,
    parse_event,
    parse_foot,
    statement,
    unpack_delivery,
)
from bwtui.recording.recover import MISSING_BEHIND, missing_hint
from bwtui.recording.sealed import (
    MANIFEST,
    SEAL_AGAIN,
    SEALED,
    SEALING,
    Manifest,
    SealedFile,
    read_manifest,
    sha256_of,
)
from bwtui.recording.view import OnProgress
from bwtui.recording.walk import BlockStep, SegmentWalk, digest_of, durable_damage, read_digest

# Check one segment, and that it follows the segment before it.


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
        self.file = SegmentFile(open_segment(segment.path), self.name, segment.path.parent)
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


# Check the sealed files: the manifest, every file it lists, and the segments they were made from.
#
# This needs neither Spark nor a Parquet reader: the manifest has the sha256 of every file.

_MANIFEST = f"{SEALED}/{MANIFEST}"
_THREADS = 4


class FilePlace(SegmentPlace):
    """A file that is damaged as a whole, missing, or unexpected, rather than damaged at one offset."""

    def __str__(self) -> str:
        return self.segment


class SealedCheck:
    """Reads the manifest when created; the methods check the rest."""

    def __init__(self, folder: Path) -> None:
        """Raises StateFailed."""
        self._folder = folder
        self._root = folder / SEALED
        self.damages: list[DamagedAt] = []
        self.manifest = self._read() if self._root.is_dir() else None
        listed = self.manifest.segments if self.manifest is not None else ()
        self._sealed = {segment.name: segment for segment in listed}

    @property
    def is_there(self) -> bool:
        """Return whether anything was sealed."""
        return self.manifest is not None or bool(self.damages)

    @property
    def bytes(self) -> int:
        """Number of bytes to read."""
        return self.manifest.bytes if self.manifest is not None else 0

    @property
    def files(self) -> int:
        """Number of files that the manifest lists."""
        return len(self.manifest.files) if self.manifest is not None else 0

    def _read(self) -> Manifest | None:
        try:
            return read_manifest(self._root / MANIFEST)
        except FileNotFoundError:
            # A running or killed seal writes files there before the manifest lists them.
            if not (self._folder / SEALING).is_dir():
                self._note(_MANIFEST, "it is missing")
        except DamagedRecording as error:
            self._note(_MANIFEST, error.message.rpartition(": ")[2])
        except OSError as error:
            raise file_failed(f"{self._root / MANIFEST} can't be read", error) from error
        return None

    def _note(self, name: str, reason: str) -> None:
        self.damages.append(damaged(FilePlace(name, 0), reason, SEAL_AGAIN))

    def check_files(self, on_read: Callable[[int], None]) -> None:
        """Read every file; call ``on_read`` with the number of bytes read so far. Raises StateFailed."""
        if self.manifest is None:
            return
        done = 0
        with ThreadPoolExecutor(_THREADS, "sha256") as pool:
            for file, problem in zip(
                self.manifest.files, pool.map(self._problem, self.manifest.files), strict=True
            ):
                if problem is not None:
                    self._note(f"{SEALED}/{file.path}", problem)
                done += file.bytes
                on_read(done)
        for path in self._strangers(self.manifest):
            self._note(f"{SEALED}/{path}", f"{_MANIFEST} does not list it")

    def _problem(self, file: SealedFile) -> str | None:
        path = self._root / file.path
        try:
            size = path.stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            return "it is missing"
        except OSError as error:
            raise file_failed(f"{path} can't be read", error) from error
        if size != file.bytes:
            return f"it has {size:,} bytes instead of {file.bytes:,}"
        return None if sha256_of(path) == file.sha256 else "it does not match its checksum"

    def _strangers(self, manifest: Manifest) -> list[str]:
        listed = {file.path for file in manifest.files} | {MANIFEST}
        existing = {
            path.relative_to(self._root).as_posix() for path in self._root.rglob("*") if path.is_file()
        }
        if existing <= listed or (self._folder / SEALING).is_dir():
            return []
        # A running seal may have finished in the meantime.
        with contextlib.suppress(DamagedRecording, OSError):
            listed |= {file.path for file in read_manifest(self._root / MANIFEST).files}
        return sorted(existing - listed)

    def check_bytes(self, segment: SegmentCheck) -> None:
        """Compare the segment's bytes with what was sealed, if its foot has no digest of all bytes."""
        sealed = self._sealed.get(segment.name)
        if sealed is None or not sealed.headers_sha256 or not segment.foot_offset:
            return
        if segment.file.sha256(segment.foot_offset) != sealed.sha256:
            self._note(segment.name, f"{_MANIFEST} lists different contents for it")

    def check_segments(self, recording: str, segments: Mapping[str, str | None]) -> None:
        """Compare the journal's segments (name to digest, None if damaged) with those that were sealed."""
        if self.manifest is None:
            return
        if recording and recording != self.manifest.recording:
            self._note(_MANIFEST, "it belongs to a different recording")
            return
        for run in self._missing(segments):
            more = f" and the {len(run) - 1:,} after it up to {run[-1]}" if len(run) > 1 else ""
            are, their = ("are", "their") if more else ("is", "its")
            listed = f"{_MANIFEST} lists {their} sealed files"
            self._note(run[0], f"this segment{more} {are} missing, but {listed}")
        for sealed in self.manifest.segments:
            if segments.get(sealed.name) not in (None, sealed.digest):
                self._note(sealed.name, f"{_MANIFEST} lists a different checksum for it")

    def _missing(self, segments: Mapping[str, str | None]) -> Iterator[list[str]]:
        """Yield runs of consecutive missing segments."""
        run: list[str] = []
        assert self.manifest is not None
        for sealed in self.manifest.segments:
            if sealed.name not in segments:
                run.append(sealed.name)
            elif run:
                yield run
                run = []
        if run:
            yield run


_ATTEMPTS = 3


@dataclass(slots=True)
class CheckResult:
    """The result of a check."""

    recording: str = ""
    segments: int = 0
    bytes: int = 0
    changes: int = 0
    transactions: int = 0
    messages: int = 0
    deliveries: int = 0
    #: Number of sealed Parquet files.
    sealed_files: int = 0
    is_being_written: bool = False
    #: Name of a segment that is unfinished and has no writer, or empty; and how its end is torn, if it is.
    unfinished: str = ""
    torn: DamagedAt | None = None
    damages: list[DamagedAt] = field(default_factory=list)
    #: First and last LSN of changes that were relayed without being recorded, as the relay noted it.
    gaps: list[tuple[int, int]] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """clean, damaged, or unfinished (intact but without its ending; 'recover' finishes it)."""
        if self.damages:
            return "damaged"
        return "unfinished" if self.unfinished else "clean"


def check(folder: Path, on_progress: OnProgress | None = None) -> CheckResult:
    """Read the whole recording and return the damage found. Raises UsageError or StateFailed."""
    written = is_being_written(folder)
    result = CheckResult(is_being_written=written)
    sealed = SealedCheck(folder)
    # The manifest lists the segments even if all of them are missing.
    paths = segments(folder) if sealed.is_there else existing_segments(folder)
    sizes = [path.path.stat().st_size if path.path.exists() else 0 for path in paths]
    done, total = 0, sum(sizes) + sealed.bytes

    def on_read(read: int) -> None:
        if on_progress is not None:
            on_progress(min(done + read, total), total)

    chain = Chain()
    checksums: dict[str, str | None] = {}
    for at, path in enumerate(paths):
        is_last = at + 1 == len(paths)
        _check_order(path, chain.number + 1, result, is_last=is_last)
        if path.number > chain.number + 1:
            chain.skip()
        with closing(_open(path)) as segment:
            segment.check(chain, on_read)
            sealed.check_bytes(segment)
        _count(result, segment, is_last=is_last)
        checksums[segment.name] = chain.previous
        done += sizes[at]
    result.recording = chain.recording
    sealed.check_segments(chain.recording, checksums)
    if paths and not written and lacks_following_segments(paths[-1], chain.ended):
        _note_missing_end(paths[-1], sizes[-1], result, sealed)
    sealed.check_files(on_read)
    result.sealed_files = sealed.files
    result.damages += sealed.damages
    return result


def _check_order(path: SegmentPath, expected: int, result: CheckResult, *, is_last: bool) -> None:
    place = SegmentPlace(path.path.name, 0)
    if path.number > expected:
        one = path.number == expected + 1
        missing = f"segment {expected} is" if one else f"segments {expected} to {path.number - 1} are"
        result.damages.append(damaged(place, f"{missing} missing before it"))
    elif path.number < expected:
        result.damages.append(damaged(place, "a different segment has the same number"))
    if not path.is_finished and not is_last:
        result.damages.append(damaged(place, "it is unfinished, but later segments follow it"))


def _note_missing_end(last: SegmentPath, size: int, result: CheckResult, sealed: SealedCheck) -> None:
    """Note that the segments after ``last`` are missing, unless the manifest lists them as missing."""
    name = last.path.name
    damaged_files = [damage.place.segment for damage in sealed.damages]
    if not any(file.endswith(SUFFIX) and file > name for file in damaged_files):
        hint = missing_hint(last.path.parent)
        result.damages.append(damaged(SegmentPlace(name, size), MISSING_BEHIND, hint))


def _open(path: SegmentPath) -> SegmentCheck:
    """Open a segment, even if the writer finishes and renames it at the same moment."""
    for _ in range(_ATTEMPTS):
        try:
            return SegmentCheck(path)
        except FileNotFoundError:
            same = [segment for segment in segments(path.path.parent) if segment.number == path.number]
            path = same[0] if same else path
        except OSError as error:
            raise file_failed(f"{path.path} can't be read", error) from error
    raise StateFailed(
        f"{path.path} disappeared during the check",
        "check again when no process removes files of the recording",
    )


def _count(result: CheckResult, segment: SegmentCheck, *, is_last: bool) -> None:
    result.segments += 1
    result.bytes += segment.file.size
    result.changes += segment.totals.changes
    result.transactions += segment.totals.transactions
    result.messages += segment.messages
    result.deliveries += segment.deliveries
    result.damages += segment.damages
    result.gaps += segment.gaps
    if not segment.is_finished and is_last and not result.is_being_written:
        result.unfinished, result.torn = segment.name, segment.torn
