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
    OverloadedError,
    PoisonedError,
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
from siltstone.store.segment.room import Room
from siltstone.store.segment.view import compress
from siltstone.store.segment.writer import SegmentWriter
from siltstone.store.slab.manifest import SlabId
from siltstone.store.slab.settings import DatabaseSettings
from siltstone.store.writer.producers import ProducerTable
from siltstone.store.writer.ticket import Outcome, RowPlaces
from siltstone.topic.structure import Structure

# Hears of every frame that readers can see: its slab, its first serial, its rows.
OnStored = Callable[[SlabId, int, Cooked], None]

COMPRESSION: Final = {"none": PLAIN, "zstd": ZSTD, "lz4": LZ4}
# How far ahead of the synced rows readers may be led; each such step costs one sync.
_RESERVE_ROWS: Final = 1 << 20


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
        self.is_heard: Callable[[], bool] = bool
        # Whether a file descriptor is held only while something is stored.
        self.parks = False
        # Blocks that are written and not yet seen, each with its stream, edges and header.
        self._written: list[tuple[Block, int, bytes, FrameHeader]] = []
        self.on_stored: OnStored | None = None

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
                frame_serial = self._store(cooked, sync=sync)
            except (StorageFullError, OverloadedError) as exc:
                self._was_full = isinstance(exc, StorageFullError)
                # What was learned for these rows must be forgotten with them.
                if cooked.edges:
                    self._cook = self._new_cook()
                raise
            except DiskError as exc:
                raise self.poison(exc) from exc
            if self.on_stored is not None:
                self.on_stored(self.slab.id, frame_serial, cooked)
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
                outcomes.append(self._write_block(call.block))
            except (StorageFullError, OverloadedError) as exc:
                self._cook = self._new_cook()
                outcomes.append(exc)
            except DiskError as exc:
                raise self.poison(exc) from exc
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

    def _write_block(self, block: Block) -> Outcome:
        """Write a frame, not yet synced nor seen by anybody."""
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
            active = self._writer_with_room(len(body), block.count, last_us)
        first_serial = self.next_serial
        header = FrameHeader(
            *(0, 0, ROWS, compression, sections, first_serial, block.count, 1),
            *(timestamp_us, last_us, 0, len(body)),
        )
        active.write(header, body, ((stream_id, 0, block.count, 0, 1),))
        self._written.append((block, stream_id, edges, header))
        self.next_serial = first_serial + block.count
        self.last_timestamp_us = last_us
        return Outcome(
            duplicate=False,
            count=block.count,
            timestamp_us=timestamp_us,
            frame_serial=first_serial,
            frame_timestamp_us=timestamp_us,
            frame_places=None,
        )

    def _settle(self) -> None:
        """Sync what blocks have written, then let readers see it."""
        if not self._written:
            return
        active, written = self._active(), self._written
        self._written = []
        self._durably(active.sync)
        self.unsynced = False
        self.slab.publish([edges for _, _, edges, _ in written if edges])
        active.publish()
        if self.on_stored is None or not self.is_heard():
            return
        for block, stream_id, _, header in written:
            cooked = cooked_block(block, stream_id, header.first_timestamp_us)
            self.on_stored(self.slab.id, header.first_serial, cooked)

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

    def _store(self, cooked: Cooked, *, sync: bool) -> int:
        """Write the frame, sync it if asked, let readers see it; return its first serial."""
        plain, sections = encode_rows(
            cooked.streams, cooked.publishers, cooked.flags, cooked.edges, cooked.producers
        )
        cooked.size_bytes = len(plain)
        compression = COMPRESSION[self.settings.compression]
        body = compress(plain, compression)
        last_us = cooked.timestamp_us + cooked.row_count - 1
        writer = self._writer_with_room(len(body), cooked.row_count, last_us)
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
        after = self.next_serial + cooked.row_count
        if not sync and after > writer.segment.reserved_serial:
            self._durably(partial(writer.reserve, after + _RESERVE_ROWS))
        writer.write(header, body, directory_of(cooked.streams))
        if sync:
            self._durably(writer.sync)
        self.unsynced = not sync
        # Readers must know a stream before they can meet its rows.
        self.slab.publish([cooked.edges] if cooked.edges else [])
        writer.publish()
        self._producers.apply(cooked.producers)
        self.last_timestamp_us = last_us
        first_serial, self.next_serial = self.next_serial, after
        return first_serial

    def _writer_with_room(self, body_bytes: int, rows: int, last_us: int) -> SegmentWriter:
        """Return the active segment, or a new one when the frame does not fit; it has its place."""
        active = self._writer.active
        after = self.next_serial + rows
        if active is not None and active.claim(
            body_bytes, next_serial=after, last_timestamp_us=last_us
        ):
            return active
        self._roll(body_bytes, claim=(rows, last_us))
        return self._active()

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
