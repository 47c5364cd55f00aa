from __future__ import annotations

from siltstone.store.segment.writer import Room, SpareRooms


def room(position: int, capacity: int) -> Room:
    return Room(position, capacity, memoryview(bytearray(capacity)))


def test_a_room_is_a_frame_around_its_contents() -> None:
    place = room(164, 80)
    place.size = 75
    assert (place.start, place.end, len(place.contents())) == (100, 244, 75)


def test_a_spare_room_serves_who_does_not_waste_half_of_it() -> None:
    spare = SpareRooms()
    place = room(100, 1000)
    spare.add(place)
    assert spare.take(1001) is None
    assert spare.take(467) is None
    assert spare.take(900) is place
    assert (place.size, place.capacity) == (900, 1000)
    assert spare.take(900) is None


def test_a_spare_room_is_found_by_its_end() -> None:
    spare = SpareRooms()
    first, second = room(100, 50), room(214, 50)
    spare.add(first)
    spare.add(second)
    assert spare.take_ending_at(264) is second
    assert spare.take_ending_at(264) is None
    assert spare.take_ending_at(150) is first
