"""Make calls durable: cook, write one frame, sync, announce. One per shard, driven by its thread.

Invariants:
- a row is visible only after its frame was written, and acknowledged as synced only after the sync;
- the structure that readers know never holds an edge whose frame they cannot see;
- a failure before the sync leaves nothing behind; a failed sync poisons the shard for good.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from siltstone.clock import Clock
from siltstone.errors import (
    DiskError,
    PoisonedError,
    RetryError,
    SiltstoneError,
    StorageFullError,
)
from siltstone.store.log.slab import Slab
from siltstone.store.log.write.blocks import cooked_block, encode_block, room_for_frame
from siltstone.store.log.write.cook import Block, Call, Cook, Cooked
from siltstone.store.log.write.repetitions import without_repetitions
from siltstone.store.segment.body import directory_of, encode_rows
from siltstone.store.segment.chain import ChainWriter
from siltstone.store.segment.frame import LZ4, PLAIN, ROWS, ZSTD, FrameHeader
from siltstone.store.segment.index import Directory
from siltstone.store.segment.room import Room
from siltstone.store.segment.view import compress
from siltstone.store.segment.writer import SegmentWriter
from siltstone.store.slab.manifest import SlabId
from siltstone.store.slab.settings import DatabaseSettings
from siltstone.store.writer.commit_log import LOCAL_LOG, CommitLog, Record, RecordKind
from siltstone.store.writer.producers import ProducerTable
from siltstone.store.writer.ticket import Outcome, RowPlaces
from siltstone.topic.structure import Structure

# Hears of every frame that readers can see: its slab, its first serial, its rows.
OnStored = Callable[[SlabId, int, Cooked], None]

COMPRESSION: Final = {"none": PLAIN, "zstd": ZSTD, "lz4": LZ4}
# How far ahead of the synced rows readers may be led; each such step costs one sync.
_RESERVE_ROWS: Final = 1 << 20


class FrameRecord(Record):
    """A frame that is encoded and has its place, with what readers must know of it."""

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
        # Either rows or a block, which has one stream.
        self.cooked: Cooked | None = None
        self.block: Block | None = None
        self.stream_id = 0

    def rows(self) -> Cooked:
        """Return the rows."""
        if self.cooked is not None:
            return self.cooked
        assert self.block is not None
        return cooked_block(self.block, self.stream_id, self.header.first_timestamp_us)

    def outcome(self) -> Outcome:
        """Return what the caller of a block learns."""
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
        self._cook = self._new_cook()
        self._was_full = False
        self._poisoned_by: Exception | None = None
        self.unsynced = False
        # Whether a file descriptor is held only while something is stored.
        self.parks = False
        # Frames that are written and that readers do not see yet.
        self._stored: list[FrameRecord] = []
        # Is called for each frame that readers can see, if `is_heard` says that anybody listens.
        self.on_stored: OnStored | None = None
        self.is_heard: Callable[[], bool] | None = None

    @property
    def poisoned_by(self) -> Exception | None:
        """What failed, so that nothing more is stored here; None: nothing did."""
        return self._poisoned_by

    def check(self) -> None:
        """Raise PoisonedError when a sync has failed here."""
        if self._poisoned_by is not None:
            # A new error each time: one that is raised again and again keeps every caller alive.
            raise self.poison(self._poisoned_by) from self._poisoned_by

    def commit(self, calls: list[Call]) -> list[Outcome | Exception]:
        """Store the calls as one frame; return what became of each, in order.

        Raises: PoisonedError; StorageFullError and OverloadedError, with nothing stored.
        """
        self.check()
        timestamp_us = max(self.last_timestamp_us + 1, self._clock.now_us())
        fresh = without_repetitions(calls, self._producers)
        if self._was_full and self._writer.active is not None:
            # What is learned for rows that are refused must be forgotten, which takes its time.
            needed = sum(len(value) for call in fresh for value in call.values)
            self._writer.active.take_space(needed)
        cooked = self._cook.cook(fresh, timestamp_us)
        # What a repeated call asks for is asked of the rows that were stored before.
        sync = any(call.wants_sync for call in calls if call.error is None)
        frame_serial = self.next_serial
        if cooked.row_count:
            try:
                frame = self._prepare(cooked, sync=sync)
                frame_serial = frame.header.first_serial
                self.log.commit(frame, self, sync=sync)
            except RetryError as exc:
                self._was_full = isinstance(exc, StorageFullError)
                self._forget(learned=bool(cooked.edges))
                raise
            except DiskError as exc:
                raise self.poison(exc) from exc
            self.publish()
            self._was_full = False
        elif sync:
            self.sync()
        return self._outcomes(calls, fresh, cooked, frame_serial)

    def commit_blocks(self, calls: list[Call]) -> list[Outcome | Exception]:
        """Store each call's block as a frame of its own, all with one sync; return what became of
        each, in order.

        Raises: PoisonedError, and then nothing is known of any.
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

    def take_room(self, size: int, *, rows: int, topic: bytes) -> Room | None:
        """Take a place for values; None where the segment has none for them and their frame.

        From any thread. Raises: StorageFullError, PoisonedError.
        """
        self.check()
        active = self._writer.active
        if active is None:
            return None
        return active.take_room(size, spare_bytes=room_for_frame(topic, rows))

    def make_room(self, size: int, *, rows: int, topic: bytes) -> Room:
        """Take a place for values, in a new segment where need be."""
        room = self.take_room(size, rows=rows, topic=topic)
        while room is None:
            self._roll(size + 128 + room_for_frame(topic, rows))
            room = self.take_room(size, rows=rows, topic=topic)
        return room

    def give_up_room(self, room: Room) -> None:
        """Take back a place that nothing will stand in. From any thread."""
        active = self._writer.active
        if active is not None and room in active:
            active.give_up_room(room)

    def _prepare(self, cooked: Cooked, *, sync: bool) -> FrameRecord:
        """Encode rows as a frame, and take its place in a segment."""
        plain, sections = encode_rows(
            cooked.streams, cooked.publishers, cooked.flags, cooked.edges, cooked.producers
        )
        cooked.size_bytes = len(plain)
        compression = COMPRESSION[self.settings.compression]
        body = compress(plain, compression)
        last_us = cooked.timestamp_us + cooked.row_count - 1
        self._take_place(len(body), cooked.row_count, last_us)
        header = FrameHeader(
            0,
            0,
            ROWS,
            compression,
            sections,
            self.next_serial,
            cooked.row_count,
            len(cooked.streams),
            cooked.timestamp_us,
            last_us,
            0,
            len(plain),
        )
        frame = FrameRecord(header, body, directory_of(cooked.streams), cooked.edges)
        frame.producers = cooked.producers
        frame.cooked = cooked
        frame.wants_sync = sync
        return frame

    def _prepare_block(self, block: Block) -> FrameRecord:
        """Encode a block as a frame, and take its place in a segment."""
        timestamp_us = max(self.last_timestamp_us + 1, self._clock.now_us())
        last_us = timestamp_us + block.count - 1
        stream_id, edges = self._cook.place(block.topic)
        active = self._writer.active
        body, sections, compression = encode_block(block, active, stream_id, edges, timestamp_us)
        after = self.next_serial + block.count
        if active is None or not active.claim(
            len(body), next_serial=after, last_timestamp_us=last_us
        ):
            # What is written so far must be seen before the segment is sealed; and of the room,
            # which stays behind, only a copy can follow.
            self._settle()
            body, sections, compression = encode_block(block, None, stream_id, edges, timestamp_us)
            self._take_place(len(body), block.count, last_us)
        header = FrameHeader(
            *(0, 0, ROWS, compression, sections, self.next_serial, block.count, 1),
            *(timestamp_us, last_us, 0, len(body)),
        )
        frame = FrameRecord(header, body, ((stream_id, 0, block.count, 0, 1),), edges)
        frame.block = block
        frame.stream_id = stream_id
        return frame

    def _forget(self, *, learned: bool) -> None:
        """Take back the place of a frame that was not stored, and what was learned for it."""
        active = self._writer.active
        if active is not None:
            self._durably(partial(active.give_up_claim, self.next_serial))
        if learned:
            self._cook = self._new_cook()

    def _settle(self) -> None:
        """Sync the blocks that are written, then let readers see them."""
        if self._stored:
            self._durably(self._active().sync)
            self.unsynced = False
            self.publish()

    # The replica, for the commit log.

    def store(self, record: Record) -> None:
        """Write a frame at the place that was taken for it."""
        assert isinstance(record, FrameRecord)
        header, writer = record.header, self._active()
        after = header.first_serial + header.row_count
        if not record.wants_sync and after > writer.segment.reserved_serial:
            self._durably(partial(writer.reserve, after + _RESERVE_ROWS))
        writer.write(header, record.body, record.directory)
        self._stored.append(record)
        self.unsynced = True
        self.next_serial = after
        self.last_timestamp_us = header.last_timestamp_us

    def publish(self) -> None:
        """Let readers see all frames that are written, and tell listeners of them."""
        frames, self._stored = self._stored, []
        # Readers must know a stream before they can meet its rows.
        self.slab.publish([frame.edges for frame in frames if frame.edges])
        self._active().publish()
        for frame in frames:
            if frame.producers:
                self._producers.apply(frame.producers)
        if self.on_stored is not None and (self.is_heard is None or self.is_heard()):
            for frame in frames:
                self.on_stored(self.slab.id, frame.header.first_serial, frame.rows())

    def has_stored(self, producer: bytes, sequence: int) -> bool:
        """Tell whether a call of a producer was stored."""
        return self._producers.holds(producer, sequence)

    def sync(self) -> None:
        """Make rows durable that were acknowledged as written only."""
        self.check()
        if self.unsynced:
            self._durably(self._active().sync)
            self.unsynced = False

    @property
    def rows(self) -> int:
        """How many serials the slab has used."""
        return self.next_serial - self._writer.chain.handles[0].base_serial

    def size_bytes(self) -> int:
        """Return the disk space that the slab takes."""
        return self._writer.size_bytes()

    def park(self) -> None:
        """Hold no file descriptor until there is more to store, where that was asked for."""
        active = self._writer.active
        if self.parks and active is not None and not self.unsynced and self._poisoned_by is None:
            active.park()

    def close(self) -> None:
        """Sync what is not, and let go of the files."""
        if self._writer.active is None:
            return
        if self._poisoned_by is None and self._gap_is_stored():
            self._writer.active.release()
        self._writer.active.close()
        self._writer.active = None

    def _gap_is_stored(self) -> bool:
        """Say whether the frames tell which serials are used; if not the reservation must stay."""
        return self._active().segment.index.next_serial >= self.next_serial

    def configure(self, settings: DatabaseSettings) -> None:
        """Follow these settings from now on."""
        learns_anew = (settings.thresholds, settings.topic_cache) != (
            self.settings.thresholds,
            self.settings.topic_cache,
        )
        self.settings = settings
        if learns_anew:
            self._cook = self._new_cook()

    def seal(self) -> None:
        """End the slab: no row goes into it any more. The caller replaces this committer."""
        self.check()
        if self._writer.active is not None:
            self._seal_active()

    def state(self) -> tuple[bytes, bytes]:
        """Return structure and producers, as the next segment begins with them."""
        return self.slab.export(), self._producers.encode()

    def inherited(self) -> tuple[Structure, ProducerTable]:
        """Return what the next generation begins with."""
        published = Structure(list(self.settings.thresholds))
        published.apply(self.slab.export())
        return published.inherit(list(self.settings.thresholds)), self._producers

    def _new_cook(self) -> Cook:
        structure = Structure(list(self.settings.thresholds))
        structure.apply(self.slab.export())
        return Cook(structure, self.settings.topic_cache)

    def _take_place(self, body_bytes: int, rows: int, last_us: int) -> None:
        """Take the place of a frame in the active segment, or in a new one if it does not fit."""
        active = self._writer.active
        after = self.next_serial + rows
        if active is None or not active.claim(
            body_bytes, next_serial=after, last_timestamp_us=last_us
        ):
            self._roll(body_bytes, claim=(rows, last_us))

    def _roll(self, room_bytes: int, *, claim: tuple[int, int] | None = None) -> None:
        """Begin a segment with so much room, and if rows and a time are given a place for them."""
        active = self._writer.active
        if active is not None and not self._is_bare(active):
            self._seal_active()
            active = None
        if active is None:
            # The name of an empty segment is taken, so behind a sealed one a serial is left out.
            last = self._writer.chain.handles[-1]
            self.next_serial = max(self.next_serial, last.base_serial + 1)
        structure, producers = self.state()
        self._writer.start(
            serial=self.next_serial,
            timestamp_us=self.last_timestamp_us,
            structure=structure,
            producers=producers,
            created_us=self._clock.now_us(),
            segment_bytes=self.settings.segment_bytes,
            room_bytes=room_bytes + 64,
            claim=None if claim is None else (self.next_serial + claim[0], claim[1]),
        )

    def _is_bare(self, active: SegmentWriter) -> bool:
        """Say whether a segment has no row and tells of none, so that another may take its name."""
        segment = active.segment
        base = segment.header.base_serial
        return segment.index.next_serial == self.next_serial == base and not segment.reserved_serial

    def _seal_active(self) -> None:
        if self._gap_is_stored():
            self._durably(self._active().release)
        else:
            # The index says where serials go on; until it stands, the reservation does.
            self._durably(self._active().sync)
            self._active().segment.index.next_serial = self.next_serial
        self.unsynced = False
        structure, producers = self.state()
        self._writer.seal(structure=structure, producers=producers)

    def _active(self) -> SegmentWriter:
        assert self._writer.active is not None
        return self._writer.active

    def _durably(self, act: Callable[[], None]) -> None:
        """Do what syncs. When it fails, for whatever reason, nothing is known of the rows."""
        try:
            act()
        except SiltstoneError as exc:
            raise self.poison(exc) from exc

    def poison(self, cause: Exception) -> PoisonedError:
        """Refuse everything from now on, because of this; return the refusal."""
        self._poisoned_by = cause
        self.unsynced = False
        return PoisonedError(
            f"a write or sync failed, close the database and open it again: "
            f"slab={self.slab.id} cause={cause}"
        )

    def _outcomes(
        self, calls: list[Call], fresh: list[Call], cooked: Cooked, frame_serial: int
    ) -> list[Outcome | Exception]:
        outcomes: list[Outcome | Exception] = []
        stored = {id(call) for call in fresh}
        timestamp_us = cooked.timestamp_us
        places: RowPlaces | None = None
        if len(cooked.streams) > 1:
            # Opened now, for the segment may be closed when somebody asks; read only then.
            segment = self._active().segment
            places = RowPlaces(segment.frame(segment.index.frame_count - 1).times)
        for call in calls:
            if call.error is not None:
                outcomes.append(call.error)
                continue
            duplicate = id(call) not in stored
            outcomes.append(
                Outcome(
                    duplicate=duplicate,
                    count=0 if duplicate else len(call.topics),
                    timestamp_us=timestamp_us,
                    frame_serial=frame_serial,
                    frame_timestamp_us=cooked.timestamp_us,
                    frame_places=places,
                )
            )
            if not duplicate:
                timestamp_us += len(call.topics)
        return outcomes
