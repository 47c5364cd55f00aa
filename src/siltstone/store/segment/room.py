"""Rooms: ranges of a segment that a socket fills directly through the map.

A room is a frame of its own kind; only its header is checked. It is taken at the end of the segment
before its contents arrive, and later frames are written behind it. A slow client therefore delays
no other writer. The contents do not count until a rows frame refers to the room. A room without a
reference is lost space, never a row.
"""

from __future__ import annotations

from siltstone.store.segment.frame import HEADER_BYTES


class Room:
    """A range of `capacity` bytes whose contents begin at `position`; `size` of them are used."""

    __slots__ = ("capacity", "filled", "position", "size", "view")

    def __init__(self, position: int, capacity: int, view: memoryview) -> None:
        self.position = position
        self.capacity = capacity
        self.size = capacity
        # The number of bytes at the start that may not be zero.
        self.filled = 0
        self.view = view

    @property
    def start(self) -> int:
        """The position where its frame begins."""
        return self.position - HEADER_BYTES

    @property
    def end(self) -> int:
        """The position where its frame ends."""
        return self.position + self.capacity

    def contents(self) -> memoryview:
        """Return the bytes that are filled, or will be."""
        return self.view[: self.size]


class SpareRooms:
    """Rooms that were given up while other frames followed them; the next request can use them."""

    def __init__(self) -> None:
        self._rooms: list[Room] = []

    def add(self, room: Room) -> None:
        self._rooms.append(room)

    def take(self, size: int) -> Room | None:
        """Return a room that fits the size and is at most about twice as large; None if none is."""
        for number, room in enumerate(self._rooms):
            if size <= room.capacity <= 2 * size + HEADER_BYTES:
                del self._rooms[number]
                room.size = size
                return room
        return None

    def take_ending_at(self, end: int) -> Room | None:
        """Return the room that ends at this position; None if there is none."""
        for number, room in enumerate(self._rooms):
            if room.end == end:
                return self._rooms.pop(number)
        return None
