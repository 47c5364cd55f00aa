"""Places in a segment that somebody else fills: what a socket receives goes straight into the map.

A room is a frame of its own kind whose header alone is checked. It is taken at the end of the
segment before its contents are there, and what is written later stands behind it, so that who is
slow to fill one holds up nobody. Nothing in it counts before a frame of rows refers to it. One that
nobody refers to is space lost, never a row.
"""

from __future__ import annotations

from siltstone.store.segment.frame import HEADER_BYTES


class Room:
    """A place of `capacity` bytes whose contents begin at `position`; `size` of them are meant."""

    __slots__ = ("capacity", "filled", "position", "size", "view")

    def __init__(self, position: int, capacity: int, view: memoryview) -> None:
        self.position = position
        self.capacity = capacity
        self.size = capacity
        # How much of it may hold something else than zeros.
        self.filled = 0
        self.view = view

    @property
    def start(self) -> int:
        """Where its frame begins."""
        return self.position - HEADER_BYTES

    @property
    def end(self) -> int:
        """Where its frame ends."""
        return self.position + self.capacity

    def contents(self) -> memoryview:
        """Return what is to be filled, or was."""
        return self.view[: self.size]


class SpareRooms:
    """Rooms that were given up while others stood behind them, for whoever wants one next."""

    def __init__(self) -> None:
        self._rooms: list[Room] = []

    def add(self, room: Room) -> None:
        self._rooms.append(room)

    def take(self, size: int) -> Room | None:
        """Return a room that the size fits and does not waste half of; None where there is none."""
        for number, room in enumerate(self._rooms):
            if size <= room.capacity <= 2 * size + HEADER_BYTES:
                del self._rooms[number]
                room.size = size
                return room
        return None

    def take_ending_at(self, end: int) -> Room | None:
        """Return the room that ends there; None where there is none."""
        for number, room in enumerate(self._rooms):
            if room.end == end:
                return self._rooms.pop(number)
        return None
