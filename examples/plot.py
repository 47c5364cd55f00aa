"""Lines on a grid as a PNG, with nothing but the standard library."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping, Sequence
from itertools import pairwise

WIDTH, HEIGHT, MARGIN = 900, 360, 24
COLOURS = ((47, 111, 115), (179, 57, 47), (217, 180, 74), (90, 90, 160))
GRID, PAPER = (225, 225, 225), (255, 255, 255)
Point = tuple[float, float]


class Canvas:
    """Pixels, from the top left."""

    def __init__(self) -> None:
        self._rows = [bytearray(PAPER * WIDTH) for _ in range(HEIGHT)]

    def dot(self, x: int, y: int, colour: tuple[int, int, int]) -> None:
        """Colour one pixel, if it is there."""
        if 0 <= x < WIDTH and 0 <= y < HEIGHT:
            self._rows[y][x * 3 : x * 3 + 3] = bytes(colour)

    def line(self, start: Point, end: Point, colour: tuple[int, int, int], *, width: int) -> None:
        """Draw a straight line."""
        steps = int(max(abs(end[0] - start[0]), abs(end[1] - start[1]), 1))
        for step in range(steps + 1):
            x = start[0] + (end[0] - start[0]) * step / steps
            y = start[1] + (end[1] - start[1]) * step / steps
            for offset in range(width):
                self.dot(round(x), round(y) + offset, colour)

    def png(self) -> bytes:
        """Return the picture as a file."""
        header = struct.pack(">IIBBBBB", WIDTH, HEIGHT, 8, 2, 0, 0, 0)
        pixels = zlib.compress(b"".join(b"\0" + bytes(row) for row in self._rows), 9)
        chunks = ((b"IHDR", header), (b"IDAT", pixels), (b"IEND", b""))
        return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, data) for name, data in chunks)


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def plot(lines: Mapping[str, Sequence[Point]]) -> bytes:
    """Return a PNG with a line for each name, in the order of the colours."""
    points = [point for line in lines.values() for point in line]
    left, right = min(x for x, _ in points), max(x for x, _ in points)
    low, high = min(y for _, y in points), max(y for _, y in points)
    across, up = (right - left) or 1.0, (high - low) or 1.0

    def place(point: Point) -> Point:
        x = MARGIN + (point[0] - left) / across * (WIDTH - 2 * MARGIN)
        y = HEIGHT - MARGIN - (point[1] - low) / up * (HEIGHT - 2 * MARGIN)
        return x, y

    canvas = Canvas()
    for part in range(5):
        y = MARGIN + part * (HEIGHT - 2 * MARGIN) / 4
        canvas.line((MARGIN, y), (WIDTH - MARGIN, y), GRID, width=1)
    for number, line in enumerate(lines.values()):
        colour = COLOURS[number % len(COLOURS)]
        for start, end in pairwise(line):
            canvas.line(place(start), place(end), colour, width=2)
    return canvas.png()
