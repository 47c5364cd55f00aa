from __future__ import annotations

from siltstone.store.log.write.committer import Committer
from siltstone.store.segment.frame import ROOM, ROWS, decode_header
from siltstone.store.segment.recovery import recover_segment
from siltstone.store.segment.segment import SEGMENT_HEADER_BYTES, open_segment
from siltstone.store.segment.writer import SegmentWriter
from tests.support.builders import World, begun, call_on, slab_place

PATH = slab_place() / f"{0:020d}.seg"


def writer_of(committer: Committer) -> SegmentWriter:
    active = committer._writer.active  # noqa: SLF001 - its own
    assert active is not None
    return active


def frames(writer: SegmentWriter) -> list[tuple[int, int, int]]:
    """Return kind, first serial and length of each frame in the file, rooms as well."""
    found: list[tuple[int, int, int]] = []
    position = SEGMENT_HEADER_BYTES
    view = writer.segment.view
    while (header := decode_header(view, position, len(view))) is not None:
        found.append((header.kind, header.first_serial, header.length))
        position += header.length
    return found


class TestRooms:
    def test_a_room_stands_between_the_frames_and_bears_the_serial_behind_those_before_it(
        self,
    ) -> None:
        committer = begun(World())
        committer.commit([call_on("a", "b")])
        writer = writer_of(committer)
        room = writer.take_room(100, spare_bytes=0)
        assert room is not None
        committer.commit([call_on("c")])
        kinds = [(kind, serial) for kind, serial, _ in frames(writer)]
        assert kinds[1:] == [(ROWS, 0), (ROOM, 2), (ROWS, 2)]
        assert (room.size, room.capacity, len(room.view)) == (100, 104, 104)
        assert room in writer

    def test_readers_pass_over_rooms(self) -> None:
        world = World()
        committer = begun(world)
        committer.commit([call_on("a")])
        writer_of(committer).take_room(100, spare_bytes=0)
        committer.commit([call_on("b")])
        segment = open_segment(world.fs, PATH)
        segment.follow()
        assert (segment.index.frame_count, segment.index.next_serial) == (3, 2)
        assert segment.index.end_position == writer_of(committer).end_position

    def test_neither_synced_nor_visible_reaches_over_a_room_at_the_end(self) -> None:
        committer = begun(World())
        committer.commit([call_on("a")])
        writer = writer_of(committer)
        end = writer.end_position
        writer.take_room(100, spare_bytes=0)
        writer.sync()
        writer.publish()
        assert (writer.segment.synced_position, writer.segment.visible_position) == (end, end)
        assert writer.end_position == end + 64 + 104

    def test_a_room_is_refused_where_it_and_what_must_follow_do_not_fit(self) -> None:
        writer = writer_of(begun(World()))
        left = writer.segment.header.file_bytes - writer.end_position
        assert writer.take_room(left, spare_bytes=0) is None
        assert writer.take_room(1000, spare_bytes=left - 1000 - 64 + 1) is None
        assert writer.take_room(1000, spare_bytes=left - 1000 - 64) is not None

    def test_what_is_given_out_was_allocated_before(self) -> None:
        world = World()
        writer = writer_of(begun(world))
        room = writer.take_room(40_000, spare_bytes=0)
        assert room is not None
        # The disk in memory fails at the next sync when a store fell into a hole.
        room.contents()[:] = b"x" * 40_000
        writer.sync()

    def test_rooms_at_the_end_are_cut_off_by_recovery(self) -> None:
        world = World()
        committer = begun(world)
        committer.commit([call_on("a")])
        writer = writer_of(committer)
        end = writer.end_position
        room = writer.take_room(100, spare_bytes=0)
        assert room is not None
        room.contents()[:] = b"x" * 100
        writer.close()
        recovered = recover_segment(world.fs, PATH, allocated=64 * 1024)
        assert recovered.writer.end_position == end
        assert recovered.torn_bytes == 64 + 100
        assert bytes(recovered.writer.segment.view[end : end + 200]) == bytes(200)

    def test_a_closed_segment_gives_no_room_and_takes_none_back(self) -> None:
        writer = writer_of(begun(World()))
        room = writer.take_room(100, spare_bytes=0)
        assert room is not None
        writer.close()
        assert writer.take_room(100, spare_bytes=0) is None
        writer.give_up_room(room)


class TestClaims:
    def test_a_claimed_place_is_kept_whoever_takes_a_room_meanwhile(self) -> None:
        committer = begun(World())
        writer = writer_of(committer)
        end = writer.end_position
        assert writer.claim(64 + 40, next_serial=1, last_timestamp_us=5)
        room = writer.take_room(8, spare_bytes=0)
        assert room is not None
        assert room.start == end + 64 + 40

    def test_a_claim_that_does_not_fit_changes_nothing(self) -> None:
        writer = writer_of(begun(World()))
        end = writer.end_position
        assert not writer.claim(1 << 20, next_serial=1, last_timestamp_us=5)
        assert writer.end_position == end

    def test_what_follows_a_claim_that_was_given_up_has_the_serial_before_it(self) -> None:
        writer = writer_of(begun(World()))
        end = writer.end_position
        assert writer.claim(64 + 40, next_serial=9, last_timestamp_us=5)
        writer.give_up_claim(3)
        room = writer.take_room(8, spare_bytes=0)
        assert room is not None
        assert room.start == end
        header = decode_header(writer.segment.view, room.start, room.end)
        assert header is not None
        assert header.first_serial == 3
