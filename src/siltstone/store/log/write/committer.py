"""Make calls durable: build a frame, write it, sync, publish. One committer for each shard.
Compiled.

Invariants:
- a row is visible only after its frame was written, and acknowledged as synced only after the sync;
- readers learn an edge only after its frame was written, and before they can see that frame;
- a refused frame (RetryError) leaves nothing behind; after any other failed write or sync the shard
  is poisoned until it is opened again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from mypy_extensions import mypyc_attr

from siltstone.clock import Clock
from siltstone.errors import (
    DiskError,
    OutcomeUnknownError,
    PoisonedError,
    RetryError,
    SiltstoneError,
    StorageFullError,
)
from siltstone.settings.declare import encoding_of, with_encoding
from siltstone.store.log.records import RollRecord
from siltstone.store.log.slab import Slab
from siltstone.store.log.write.blocks import encode_block, frame_of_block, room_for_frame
from siltstone.store.log.write.frame_builder import Block, BuiltFrame, Call, FrameBuilder, claims_of
from siltstone.store.log.write.repetitions import without_repetitions
from siltstone.store.segment.body import directory_of, encode_rows, encode_state, pack_rows
from siltstone.store.segment.chain import ChainWriter, state_header
from siltstone.store.segment.frame import (
    HEADER_BYTES,
    LZ4,
    PACKED,
    PACKED_ROWS_MAX,
    PLAIN,
    ROWS,
    ZSTD,
    FrameHeader,
    encode_frame,
    header_bytes,
)
from siltstone.store.segment.index import Directory
from siltstone.store.segment.view import compress
from siltstone.store.segment.writer import Room, SegmentWriter
from siltstone.store.slab.manifest import SlabId
from siltstone.store.slab.settings import DatabaseSettings
from siltstone.store.writer.commit_log import LOCAL_LOG, CommitLog, Record, RecordKind
from siltstone.store.writer.producers import ProducerTable
from siltstone.store.writer.replication.messages import ProducerCall
from siltstone.store.writer.ticket import Outcome, RowPlaces
from siltstone.topic.structure import Structure

# Called for every frame that became visible, with its slab, its first serial and its rows.
OnStored = Callable[[SlabId, int, BuiltFrame], None]

COMPRESSION: Final = {"none": PLAIN, "zstd": ZSTD, "lz4": LZ4}
# How many serials a reservation adds. Readers may see unsynced rows below the reserved serial.
# Each reservation costs one sync.
_RESERVE_ROWS: Final = 1 << 20
# More bytes than a small frame takes besides its topics and values.
_FRAME_OVERHEAD: Final = 4096


@mypyc_attr(allow_interpreted_subclasses=True)
class FrameRecord(Record):
    """An encoded frame whose place is claimed, with its directory, edges, producers and rows."""

    def __init__(
        self, header: FrameHeader, body: bytes, directory: Directory, edges: bytes
    ) -> None:
        super().__init__(RecordKind.ROWS)
        self.header = header
        self.body = body
        self.directory = directory
        self.edges = edges
        self.producers = b""
        self.wants_sync = True
        # The seed of the checksum, which is the same in all segments of a slab.
        self.seed = 0
        # The claims of the calls, by which a replicated log recognises repeated calls.
        self.claims: list[ProducerCall] = []
        # Either rows or a block, which has one stream.
        self.built: BuiltFrame | None = None
        self.block: Block | None = None
        self.stream_id = 0

    def payload(self) -> bytes:
        """Return the frame as all sites store it."""
        return encode_frame(self.header, self.body, self.seed) + self.body

    def rows(self) -> BuiltFrame:
        """Return the rows."""
        if self.built is not None:
            return self.built
        assert self.block is not None
        return frame_of_block(self.block, self.stream_id, self.header.first_timestamp_us)

    def outcome(self) -> Outcome:
        """Return the outcome of the call whose block this is."""
        return Outcome(
            duplicate=False,
            count=self.header.row_count,
            timestamp_us=self.header.first_timestamp_us,
            frame_serial=self.header.first_serial,
            frame_timestamp_us=self.header.first_timestamp_us,
            frame_places=None,
        )


class Committer:
    """The writing half of a shard. Not thread-safe."""

    def __init__(
        self,
        clock: Clock,
        settings: DatabaseSettings,
        slab: Slab,
        writer: ChainWriter,
        *,
        producers: ProducerTable,
        next_serial: int,
        last_timestamp_us: int,
    ) -> None:
        self._clock = clock
        self.log: CommitLog = LOCAL_LOG
        self.settings = settings
        self.slab = slab
        self._writer = writer
        self._producers = producers
        self.next_serial = next_serial
        self.last_timestamp_us = last_timestamp_us
        self._builder = self._new_builder()
        self._was_full = False
        # The place of the frame for which a segment is begun: next serial and last time. It is
        # claimed with the start of the segment, before another thread can take a room there.
        self._claim: tuple[int, int] | None = None
        self._poisoned_by: Exception | None = None
        self.unsynced = False
        # Whether the file descriptor is closed while there is nothing to store.
        self.parks = False
        # Frames that are written and not visible to readers yet.
        self._stored: list[FrameRecord] = []
        # Whether readers know that the segments of the slab are open.
        self._is_loaded = False
        # Called for each frame that became visible, unless `is_heard` returns False: no listener.
        self.on_stored: OnStored | None = None
        self.is_heard: Callable[[], bool] | None = None

    @property
    def poisoned_by(self) -> Exception | None:
        """The error that poisoned the shard; None if it is not poisoned."""
        return self._poisoned_by

    def check(self) -> None:
        """Raise PoisonedError if a write or sync of the shard failed."""
        if self._poisoned_by is not None:
            # Raise a new error each time: a shared one would keep the frames of all callers alive.
            raise self.poison(self._poisoned_by) from self._poisoned_by

    def commit(self, calls: list[Call]) -> list[Outcome | Exception]:
        """Store the calls as one frame; return the outcome of each, in order.

        Raises: PoisonedError; StorageFullError and OverloadedError, with nothing stored.
        """
        self.check()
        timestamp_us = max(self.last_timestamp_us + 1, self._clock.now_us())
        fresh = without_repetitions(calls, self._producers)
        if self._was_full and self._writer.active is not None:
            # Check the space before building: it is slow to forget the edges of refused rows.
            needed = sum(len(value) for call in fresh for value in call.batch.values)
            self._writer.active.take_space(needed)
        built = self._builder.build(fresh, timestamp_us)
        # A repeated call counts, too: it asks for a sync of rows that were stored before.
        sync = False
        for call in calls:
            if call.wants_sync and call.error is None:
                sync = True
        frame_serial = self.next_serial
        if built.row_count:
            try:
                frame = self._prepare(built, sync=sync)
                frame.claims = claims_of(fresh)
                frame_serial = frame.header.first_serial
                self.log.commit(frame, self, sync=sync)
            except (RetryError, OutcomeUnknownError) as exc:
                # A replicated log stores a record of unknown outcome when it counts.
                self._was_full = isinstance(exc, StorageFullError)
                self._forget(learned=bool(built.edges))
                raise
            except DiskError as exc:
                raise self.poison(exc) from exc
            self.publish()
            self._was_full = False
        elif sync:
            self.sync()
        return self._outcomes(calls, fresh, built, frame_serial)

    def commit_blocks(self, calls: list[Call]) -> list[Outcome | Exception]:
        """Store the block of each call as its own frame; return the outcome of each, in order.

        The frames usually share one sync; a new segment needs another one.

        Raises: PoisonedError; then the outcome of every call is unknown.
        """
        self.check()
        outcomes: list[Outcome | Exception] = []
        for call in calls:
            assert call.block is not None
            try:
                frame = self._prepare_block(call.block)
                self.log.commit(frame, self, sync=False)
            except RetryError as exc:
                self._forget(learned=True)
                outcomes.append(exc)
            except DiskError as exc:
                raise self.poison(exc) from exc
            else:
                outcomes.append(frame.outcome())
        self._settle()
        return outcomes

    def is_handy(self, size_bytes: int) -> bool:
        """Return whether rows of this size can be stored without other slow work than a sync.

        The shard is stored on this machine only, its file is open, and has the disk space. From any
        thread: if another thread commits meanwhile, the answer is a guess.
        """
        active = self._writer.active
        return (
            self.log is LOCAL_LOG
            and active is not None
            and not self.parks
            and active.has_space(_FRAME_OVERHEAD + 2 * size_bytes)
        )

    def allocate_ahead(self) -> None:
        """Allocate disk space before the next frames need it, so that they do not wait for it.

        If the disk is full, the next frame that needs the space is refused.
        """
        active = self._writer.active
        if active is None or self._poisoned_by is not None or self.parks or not active.is_short():
            return
        with suppress(StorageFullError):
            active.allocate_ahead()

    def prepare_ahead(self) -> None:
        """Prepare the next segment on a thread of its own if the active one is nearly full.

        Raises: StorageFullError, OverloadedError; PoisonedError if a directory could not be synced.
        """
        active = self._writer.active
        if self._poisoned_by is not None or active is None:
            return
        # This comes after each flush, and is almost always not due.
        if not self._writer.is_unfinished and not active.is_nearly_full():
            return
        try:
            self._writer.prepare_ahead()
        except StorageFullError:
            raise
        except DiskError as exc:
            raise self.poison(exc) from exc

    def wait_ahead(self) -> None:
        """Wait until the thread that prepares has ended. Raises: its error."""
        self._writer.wait_ahead()

    def index_words(self) -> None:
        """Add the last frames to the word index of their segment."""
        active = self._writer.active
        if active is not None:
            active.index_words()

    def take_room(self, size: int, *, rows: int, topic: bytes) -> Room | None:
        """Take a room for values; return None if the room and its frame do not fit the segment.

        From any thread. Raises: StorageFullError, PoisonedError.
        """
        self.check()
        active = self._writer.active
        if active is None:
            return None
        return active.take_room(size, spare_bytes=room_for_frame(topic, rows))

    def make_room(self, size: int, *, rows: int, topic: bytes) -> Room:
        """Take a room for values; begin a new segment if necessary."""
        room = self.take_room(size, rows=rows, topic=topic)
        while room is None:
            self._roll(size + 3 * HEADER_BYTES + room_for_frame(topic, rows))
            room = self.take_room(size, rows=rows, topic=topic)
        return room

    def give_up_room(self, room: Room) -> None:
        """Give up a room that no frame will refer to. From any thread."""
        active = self._writer.active
        if active is not None and room in active:
            active.give_up_room(room)

    def _prepare(self, built: BuiltFrame, *, sync: bool) -> FrameRecord:
        """Encode rows as a frame, and claim its place in a segment."""
        compression = COMPRESSION[self.settings.compression]
        sections = 0
        packed = self._packed(built) if compression == PLAIN else None
        if packed is not None:
            body, compression = packed, PACKED
            built.size_bytes = len(body)
        else:
            plain, sections = encode_rows(
                built.streams, built.publishers, built.flags, built.edges, built.producers
            )
            built.size_bytes = len(plain)
            body = compress(plain, compression)
        last_us = built.timestamp_us + built.row_count - 1
        self._take_place(header_bytes(compression) + len(body), built.row_count, last_us)
        header = FrameHeader(
            kind=ROWS,
            compression=compression,
            section_count=sections,
            first_serial=self.next_serial,
            row_count=built.row_count,
            stream_count=len(built.streams),
            first_timestamp_us=built.timestamp_us,
            last_timestamp_us=last_us,
            body_bytes=built.size_bytes,
        )
        frame = FrameRecord(header, body, directory_of(built.streams), built.edges)
        frame.seed = self.seed
        frame.producers = built.producers
        frame.built = built
        frame.wants_sync = sync
        return frame

    def _packed(self, built: BuiltFrame) -> bytes | None:
        """Return the body of a packed frame with these rows; None if they do not fit in one, or the
        segment has no packed frames: it is one of an earlier version, or other sites have it too.
        """
        if built.row_count > PACKED_ROWS_MAX or not self._writer.packs:
            return None
        return pack_rows(
            built.streams,
            built.publishers,
            built.flags,
            built.edges,
            built.producers,
            built.timestamp_us,
        )

    def _prepare_block(self, block: Block) -> FrameRecord:
        """Encode a block as a frame, and claim its place in a segment."""
        timestamp_us = max(self.last_timestamp_us + 1, self._clock.now_us())
        last_us = timestamp_us + block.count - 1
        stream_id, edges = self._builder.place(block.topic)
        active = self._writer.active
        body, sections, compression = encode_block(block, active, stream_id, edges, timestamp_us)
        after = self.next_serial + block.count
        if active is None or not active.claim(
            HEADER_BYTES + len(body), next_serial=after, last_timestamp_us=last_us
        ):
            # Written frames must be published before the segment is sealed. The room stays in the
            # old segment, so its contents are copied into the body.
            self._settle()
            body, sections, compression = encode_block(block, None, stream_id, edges, timestamp_us)
            self._take_place(HEADER_BYTES + len(body), block.count, last_us)
        header = FrameHeader(
            kind=ROWS,
            compression=compression,
            section_count=sections,
            first_serial=self.next_serial,
            row_count=block.count,
            stream_count=1,
            first_timestamp_us=timestamp_us,
            last_timestamp_us=last_us,
            body_bytes=len(body),
        )
        frame = FrameRecord(header, body, ((stream_id, 0, block.count, 0, 1),), edges)
        frame.block = block
        frame.stream_id = stream_id
        return frame

    def _forget(self, *, learned: bool) -> None:
        """Give up the place of a frame that was not stored; forget the edges learned for it."""
        active = self._writer.active
        if active is not None:
            self._durably(partial(active.give_up_claim, self.next_serial))
        if learned:
            self._builder = self._new_builder()

    def _settle(self) -> None:
        """Sync the written blocks, then make them visible to readers."""
        if self._stored:
            self._durably(self._active().sync)
            self.unsynced = False
            self.publish()

    # The replica, for the commit log.

    def store(self, record: Record) -> None:
        """Write a frame at the place that was claimed for it, or begin the next segment."""
        if isinstance(record, RollRecord):
            self._begin_segment(record)
            return
        assert isinstance(record, FrameRecord)
        header, writer = record.header, self._active()
        after = header.first_serial + header.row_count
        if not record.wants_sync and after > writer.segment.reserved_serial:
            self._durably(partial(writer.reserve, after + _RESERVE_ROWS))
        # A record of a shared log may count or not, so it is synced when it counts. The blocks of a
        # flush share the sync of `_settle`, which also syncs their rooms: a frame must not count as
        # synced before the values to which it refers.
        durably = record.wants_sync and record.block is None and self.log is LOCAL_LOG
        if not writer.write(header, record.body, record.directory, durably=durably):
            self.unsynced = True
        self._stored.append(record)
        self.next_serial = after
        self.last_timestamp_us = header.last_timestamp_us

    def publish(self) -> None:
        """Make all written frames visible to readers, and call the listeners."""
        frames, self._stored = self._stored, []
        if not frames:
            return
        # Readers must know a stream before its rows become visible, or they would miss them.
        edges = [frame.edges for frame in frames if frame.edges]
        if edges or not self._is_loaded:
            self.slab.publish(edges)
            self._is_loaded = True
        self._active().publish()
        for frame in frames:
            if frame.producers:
                self._producers.apply(frame.producers)
        if self.on_stored is not None and (self.is_heard is None or self.is_heard()):
            for frame in frames:
                self.on_stored(self.slab.id, frame.header.first_serial, frame.rows())

    @property
    def seed(self) -> int:
        """The seed of the checksums of all frames of the slab."""
        return self._writer.seed

    def replicate(self, log: CommitLog) -> None:
        """Commit through a log that other sites share: all sites write the same bytes."""
        self.log = log
        self._writer.forget_syncs()

    def resume(self) -> None:
        """Prepare the next records from the stored state: other records may have been stored since
        the last one was prepared here.
        """
        self._builder = self._new_builder()

    def has_stored(self, producer: bytes, sequence: int) -> bool:
        """Return whether a call of a producer was stored. From any thread."""
        return self._producers.holds(producer, sequence)

    def sync(self) -> None:
        """Sync the rows that were written without a sync."""
        self.check()
        if self.unsynced:
            self._durably(self._active().sync)
            self.unsynced = False

    @property
    def has_old_marks(self) -> bool:
        """Whether the header of the segment is behind the frames on the disk: after a power cut,
        readers see the last rows only when the shard is opened for writing.
        """
        active = self._writer.active
        return active is not None and active.has_old_marks

    def renew_marks(self) -> None:
        """Make the header of the segment durable, with all frames."""
        self.check()
        if self.has_old_marks:
            self._durably(self._active().sync)
            self.unsynced = False

    @property
    def rows(self) -> int:
        """The number of serials that the slab has used."""
        return self.next_serial - self._writer.chain.handles[0].base_serial

    def size_bytes(self) -> int:
        """Return the disk space of the slab in bytes."""
        return self._writer.size_bytes()

    def measure(self) -> None:
        """Measure the disk space of the sealed segments again: files of them were replaced."""
        self._writer.measure()

    def used_bytes(self) -> int:
        """Return the disk space of the slab in bytes, without space that is allocated ahead."""
        return self._writer.used_bytes()

    def park(self) -> None:
        """If `parks` is set, close the file descriptor until there is more to store."""
        active = self._writer.active
        if self.parks and active is not None and not self.unsynced and self._poisoned_by is None:
            active.park()

    def close(self) -> None:
        """Sync, unless the shard is poisoned, and close the files."""
        try:
            if self._poisoned_by is None:
                self._writer.finish()
        finally:
            self._writer.abandon()
            self._close_active()

    def _close_active(self) -> None:
        if self._writer.active is None:
            return
        if self._poisoned_by is None and self._gap_is_stored():
            self._writer.active.release()
        self._writer.active.close()
        self._writer.active = None

    def _gap_is_stored(self) -> bool:
        """Return whether the frames record all used serials; if not, the reservation must stay."""
        return self._active().segment.index.next_serial >= self.next_serial

    def configure(self, settings: DatabaseSettings) -> None:
        """Apply these settings from now on; the slab keeps its encoding."""
        is_resized = settings.topic_cache != self.settings.topic_cache
        self.settings = with_encoding(settings, encoding_of(self.settings))
        if is_resized:
            self._builder = self._new_builder()

    def is_scattered(self, frames_min: int, rows_max: int, before_us: int) -> bool:
        """Return whether the active segment has at least `frames_min` frames with fewer than
        `rows_max` rows on average, and a row from before this time. From any thread.
        """
        active = self._writer.active
        if active is None:
            return False
        index = active.segment.index
        frames = index.frame_count
        rows = index.next_serial - index.first_serial
        if frames < frames_min or rows >= rows_max * frames:
            return False
        return index.first_times[1] < before_us

    def end_segment(self) -> None:
        """Begin a segment for the next rows. Raises: StorageFullError, PoisonedError."""
        self.check()
        try:
            self._roll(HEADER_BYTES)
        except DiskError as exc:
            raise self.poison(exc) from exc

    def skip_serials(self, count: int) -> None:
        """Leave a gap of `count` serials, durably, as after a crash.

        Raises: StorageFullError, PoisonedError.
        """
        self.check()
        body, sections = encode_state(*self.state())
        active = self._writer.active
        if active is None or not active.has_room(len(body)):
            self._roll(HEADER_BYTES + len(body))
        serial = self.next_serial + count
        header = state_header(body, sections, serial=serial, timestamp_us=self.last_timestamp_us)
        try:
            self._active().write(header, body, ())
        except DiskError as exc:
            raise self.poison(exc) from exc
        self._durably(self._active().sync)
        self._active().publish()
        self.next_serial = serial

    def seal(self, structure: bytes, producers: bytes) -> None:
        """Seal the slab: it accepts no more rows. The caller replaces this committer.

        The last index gets the structure and the producers, which are those of `state`.
        """
        self.check()
        self._durably(self._writer.finish)
        if self._writer.active is not None:
            self._seal_active(structure, producers)

    def state(self) -> tuple[bytes, bytes]:
        """Return the structure and the producers, encoded for the start or the end of a segment."""
        return self.slab.export(), self._producers.encode()

    def inherited(self, thresholds: Sequence[int]) -> Structure:
        """Return the structure of the next generation, which has these thresholds."""
        published = Structure(list(self.settings.thresholds))
        published.apply(self.slab.export())
        return published.inherit(list(thresholds))

    def _new_builder(self) -> FrameBuilder:
        structure = Structure(list(self.settings.thresholds))
        structure.apply(self.slab.export())
        return FrameBuilder(structure, self.settings.topic_cache)

    def _take_place(self, frame_bytes: int, rows: int, last_us: int) -> None:
        """Claim the place of a frame in the active segment, or in a new one if it does not fit."""
        active = self._writer.active
        after = self.next_serial + rows
        if active is None or not active.claim(
            frame_bytes, next_serial=after, last_timestamp_us=last_us
        ):
            self._roll(frame_bytes, claim=(rows, last_us))

    def _roll(self, room_bytes: int, *, claim: tuple[int, int] | None = None) -> None:
        """Begin a segment with at least `room_bytes` of free space.

        `claim` is the row count and the last time of a frame; its place is claimed at once.
        """
        active = self._writer.active
        serial = self.next_serial
        if active is None or not self._is_bare(active):
            # A segment is named after its first serial. If the segment before has no rows, its name
            # is taken, so one serial is skipped.
            serial = max(serial, self._writer.chain.handles[-1].base_serial + 1)
        structure, producers = self.state()
        record = RollRecord(
            serial=serial,
            timestamp_us=self.last_timestamp_us,
            created_us=self._clock.now_us(),
            segment_bytes=self.settings.segment_bytes,
            room_bytes=room_bytes,
            structure=structure,
            producers=producers,
        )
        self._claim = None if claim is None else (serial + claim[0], claim[1])
        try:
            self.log.commit(record, self, sync=False)
        finally:
            self._claim = None

    def _begin_segment(self, record: RollRecord) -> None:
        """Seal the active segment, unless it is bare, and begin the next one."""
        active = self._writer.active
        if active is not None and not self._is_bare(active):
            self._release_active()
            self._writer.end(structure=record.structure, producers=record.producers)
        self.next_serial = record.serial
        self._writer.start(
            serial=record.serial,
            timestamp_us=record.timestamp_us,
            structure=record.structure,
            producers=record.producers,
            created_us=record.created_us,
            segment_bytes=record.segment_bytes,
            room_bytes=record.room_bytes,
            claim=self._claim,
        )

    def _is_bare(self, active: SegmentWriter) -> bool:
        """Return whether a segment has no rows and reserves none: a new one may take its name."""
        segment = active.segment
        base = segment.header.base_serial
        return segment.index.next_serial == self.next_serial == base and not segment.reserved_serial

    def _seal_active(self, structure: bytes, producers: bytes) -> None:
        self._release_active()
        self._writer.seal(structure=structure, producers=producers)

    def _release_active(self) -> None:
        """Sync the active segment, which gets no more frames."""
        if self._gap_is_stored():
            self._durably(self._active().release)
        else:
            # The index records the next serial. Until the index is written, the reservation does.
            self._durably(self._active().sync)
            self._active().segment.index.next_serial = self.next_serial
        self.unsynced = False

    def _active(self) -> SegmentWriter:
        assert self._writer.active is not None
        return self._writer.active

    def _durably(self, act: Callable[[], None]) -> None:
        """Run a function that syncs; poison the shard if it fails: the state of rows is unknown."""
        try:
            act()
        except SiltstoneError as exc:
            raise self.poison(exc) from exc

    def poison(self, cause: Exception) -> PoisonedError:
        """Refuse all writes from now on because of an error; return the error for callers."""
        self._poisoned_by = cause
        self.unsynced = False
        return PoisonedError(
            f"a write or sync failed, close the database and open it again: "
            f"slab={self.slab.id} cause={cause}"
        )

    def _outcomes(
        self, calls: list[Call], fresh: list[Call], built: BuiltFrame, frame_serial: int
    ) -> list[Outcome | Exception]:
        outcomes: list[Outcome | Exception] = []
        has_repeated = len(fresh) != len(calls)
        stored = {id(call) for call in fresh} if has_repeated else set()
        timestamp_us = built.timestamp_us
        places: RowPlaces | None = None
        if len(built.streams) > 1:
            times = [stream.times.getvalue() for stream in built.streams]
            places = RowPlaces(partial(_joined, times))
        for call in calls:
            if call.error is not None:
                outcomes.append(call.error)
                continue
            duplicate = has_repeated and id(call) not in stored
            outcomes.append(
                Outcome(
                    duplicate=duplicate,
                    count=0 if duplicate else len(call.batch.topics),
                    timestamp_us=timestamp_us,
                    frame_serial=frame_serial,
                    frame_timestamp_us=built.timestamp_us,
                    frame_places=places,
                )
            )
            if not duplicate:
                timestamp_us += len(call.batch.topics)
        return outcomes


def _joined(times: list[bytes]) -> memoryview:
    return memoryview(b"".join(times)).cast("q")
