"""Lines on a grid as a PNG, with nothing but the standard library."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping, Sequence
from itertools import pairwise

WIDTH, HEIGHT = 900, 400
LEFT, RIGHT, TOP, BOTTOM = 64, 24, 64, 40
GRID_LINES = 4
COLOURS = ((47, 111, 115), (179, 57, 47), (217, 180, 74), (90, 90, 160))
GRID, INK, PAPER = (225, 225, 225), (70, 70, 70), (255, 255, 255)
# Letters of 3 by 5 dots, a number of 3 bits for each line.
LETTERS = dict(
    zip(
        "abcdefghijklmnopqrstuvwxyz0123456789-.,",
        (
            *("25755", "65656", "34443", "65556", "74647", "74644", "34553", "55755", "72227"),
            *("11152", "55655", "44447", "57755", "65555", "25552", "65644", "25563", "65655"),
            *("34216", "72222", "55557", "55552", "55775", "55255", "55222", "71247"),
            *("75557", "26227", "61247", "61216", "55711", "74616", "34757", "71222", "75757"),
            *("75716", "00700", "00002", "00024"),
        ),
        strict=True,
    )
)
DOT = 2
LETTER_WIDTH, LETTER_HEIGHT = 4 * DOT, 5 * DOT
Colour = tuple[int, int, int]
Point = tuple[float, float]


class Canvas:
    """Pixels, from the top left."""

    def __init__(self) -> None:
        self._rows = [bytearray(PAPER * WIDTH) for _ in range(HEIGHT)]

    def dot(self, x: int, y: int, colour: Colour) -> None:
        """Colour one pixel, if it is there."""
        if 0 <= x < WIDTH and 0 <= y < HEIGHT:
            self._rows[y][x * 3 : x * 3 + 3] = bytes(colour)

    def line(self, start: Point, end: Point, colour: Colour, *, width: int) -> None:
        """Draw a straight line."""
        steps = int(max(abs(end[0] - start[0]), abs(end[1] - start[1]), 1))
        for step in range(steps + 1):
            x = start[0] + (end[0] - start[0]) * step / steps
            y = start[1] + (end[1] - start[1]) * step / steps
            for offset in range(width):
                self.dot(round(x), round(y) + offset, colour)

    def text(self, words: str, place: Point, colour: Colour = INK) -> None:
        """Write words, their top left at a place; letters that there are none of are left out."""
        for number, letter in enumerate(words.lower()):
            for line, bits in enumerate(LETTERS.get(letter, "")):
                for column in range(3):
                    if int(bits) & (4 >> column):
                        x = round(place[0]) + number * LETTER_WIDTH + column * DOT
                        self._block(x, round(place[1]) + line * DOT, colour)

    def _block(self, x: int, y: int, colour: Colour) -> None:
        for offset in range(DOT * DOT):
            self.dot(x + offset % DOT, y + offset // DOT, colour)

    def png(self) -> bytes:
        """Return the picture as a file."""
        header = struct.pack(">IIBBBBB", WIDTH, HEIGHT, 8, 2, 0, 0, 0)
        pixels = zlib.compress(b"".join(b"\0" + bytes(row) for row in self._rows), 9)
        chunks = ((b"IHDR", header), (b"IDAT", pixels), (b"IEND", b""))
        return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, data) for name, data in chunks)


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def plot(title: str, lines: Mapping[str, Sequence[Point]]) -> bytes:
    """Return a PNG with a line for each name, in the order of the colours."""
    points = [point for line in lines.values() for point in line]
    first, last = min(x for x, _ in points), max(x for x, _ in points)
    low, high = min(y for _, y in points), max(y for _, y in points)
    across, up = (last - first) or 1.0, (high - low) or 1.0

    def place(point: Point) -> Point:
        x = LEFT + (point[0] - first) / across * (WIDTH - LEFT - RIGHT)
        y = HEIGHT - BOTTOM - (point[1] - low) / up * (HEIGHT - TOP - BOTTOM)
        return x, y

    canvas = Canvas()
    canvas.text(title, (LEFT, 12))
    for part in range(GRID_LINES + 1):
        value, step = low + part * up / GRID_LINES, first + part * across / GRID_LINES
        _, y = place((first, value))
        canvas.line((LEFT, y), (WIDTH - RIGHT, y), GRID, width=1)
        label = f"{value:.1f}"
        canvas.text(label, (LEFT - 8 - len(label) * LETTER_WIDTH, y - LETTER_HEIGHT / 2))
        x, label = place((step, low))[0], f"{step:.0f}"
        canvas.text(label, (x - len(label) * LETTER_WIDTH / 2, HEIGHT - BOTTOM + 12))
    x = float(LEFT)
    for number, (name, line) in enumerate(lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        for start, end in pairwise(line):
            canvas.line(place(start), place(end), colour, width=2)
        canvas.line((x, 40), (x + 24, 40), colour, width=4)
        canvas.text(name, (x + 32, 36))
        x += 56 + len(name) * LETTER_WIDTH
    return canvas.png()
