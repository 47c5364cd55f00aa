"""What does not belong into a table ends it; each frame behind is opened by itself."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

import numpy as np
import pyarrow as pa
import pytest
from crc32c import crc32c

from siltstone.store.segment import table as table_module
from siltstone.store.segment.frame import HEADER_BYTES, SECTION, SECTION_MAX, STREAMS
from siltstone.store.segment.table import FrameTable
from tests.support.frames import NOW_US, SEED, frame_bytes, rows_frame

COUNT = 5
FRAMES = [
    frame_bytes(rows_frame({1: [b"value"]}, serial=number, timestamp_us=NOW_US + number))
    for number in range(COUNT)
]
SIZE = len(FRAMES[0])
POSITIONS = [SIZE * number for number in range(COUNT)]
END = SIZE * COUNT
# The frame that is damaged, and its first entry of the table of sections.
AT = POSITIONS[2]
ENTRY = AT + HEADER_BYTES
SECOND = int.from_bytes(FRAMES[0][HEADER_BYTES + SECTION.size :][:2], "little")


def bytes_of(frames: list[bytes] | None = None) -> bytearray:
    return bytearray(b"".join(FRAMES if frames is None else frames))


def table_of(data: bytearray, *, limit: int = 0, positions: list[int] | None = None) -> FrameTable:
    stored = bytes(data)
    found = np.array(POSITIONS if positions is None else positions, np.int64)
    return FrameTable(memoryview(stored), pa.py_buffer(stored), found, limit or len(stored))


def put(data: bytearray, offset: int, value: int, width: int) -> None:
    data[offset : offset + width] = value.to_bytes(width, "little")


def number_at(data: bytearray, offset: int, width: int) -> int:
    return int.from_bytes(data[offset : offset + width], "little")


def test_sound_frames_are_all_in_it() -> None:
    table = table_of(bytes_of())
    assert table.positions.tolist() == POSITIONS
    assert table.ends.tolist() == [*POSITIONS[1:], END]
    assert table.first_serials.tolist() == list(range(COUNT))
    assert table.row_counts.tolist() == [1] * COUNT


def add_to(offset: int, width: int, amount: int) -> Callable[[bytearray], None]:
    def change(data: bytearray) -> None:
        put(data, offset, number_at(data, offset, width) + amount, width)

    return change


def set_to(offset: int, width: int, value: int) -> Callable[[bytearray], None]:
    return lambda data: put(data, offset, value, width)


DAMAGE: dict[str, Callable[[bytearray], None]] = {
    "magic": set_to(AT, 1, ord("X")),
    "length below the header": set_to(AT + 8, 4, HEADER_BYTES - 8),
    "length not a multiple of 8": add_to(AT + 8, 4, 4),
    "length behind the end": set_to(AT + 8, 4, END),
    "kind": set_to(AT + 12, 1, 2),
    "compression": set_to(AT + 13, 1, 2),
    "too many sections": set_to(AT + 14, 2, SECTION_MAX + 1),
    "section 0": set_to(ENTRY, 2, 0),
    "unknown section": set_to(ENTRY, 2, SECTION_MAX + 1),
    "repeated streams": set_to(ENTRY + SECTION.size, 2, STREAMS),
    "repeated section": set_to(ENTRY + 2 * SECTION.size, 2, SECOND),
    "section behind the end": add_to(ENTRY + 4, 4, SIZE),
    "directory of another size": add_to(ENTRY + 4, 4, -8),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_it_ends_before_a_frame_whose_head_is_not_sound(kind: str) -> None:
    data = bytes_of()
    DAMAGE[kind](data)
    assert table_of(data).positions.tolist() == POSITIONS[:2]


@pytest.mark.parametrize(("limit", "count"), [(END, 5), (END - 1, 4), (AT + 1, 2), (AT, 2)])
def test_it_ends_before_a_frame_that_reaches_over_the_limit(limit: int, count: int) -> None:
    assert len(table_of(bytes_of(), limit=limit)) == count


@pytest.mark.parametrize(
    ("name", "reach", "count"),
    [
        ("_REACH_BYTES", AT, 2),
        ("_REACH_BYTES", AT + 1, 3),
        ("_OFFSET_MAX", AT, 2),
        ("_OFFSET_MAX", AT - 1, 1),
    ],
)
def test_it_ends_where_offsets_would_be_too_large(
    monkeypatch: pytest.MonkeyPatch, name: str, reach: int, count: int
) -> None:
    monkeypatch.setattr(table_module, name, reach)
    assert len(table_of(bytes_of())) == count


class TestChecks:
    def damaged(self, *, head: bool) -> bytearray:
        data = bytes_of()
        offset = AT + HEADER_BYTES + SECTION.size * number_at(data, AT + 14, 2) if head else 0
        put(data, offset or POSITIONS[3] - 8, 0xEE, 1)
        return data

    def test_each_checksum_is_checked_that_was_not(self) -> None:
        sound = table_of(bytes_of())
        sound.keep_checked(SEED)
        assert len(sound) == COUNT
        for checked, count in (([0] * COUNT, 2), ([0, 0, 1, 0, 0], COUNT)):
            table = table_of(self.damaged(head=False))
            table.keep_checked(SEED, checked)
            assert len(table) == count
        other = table_of(bytes_of())
        other.keep_checked(SEED + 1)
        assert len(other) == 0

    def test_of_trusted_frames_only_the_heads_are_checked(self) -> None:
        for data, count in (
            (bytes_of(), COUNT),
            (self.damaged(head=False), COUNT),
            (self.damaged(head=True), 2),
        ):
            table = table_of(data)
            table.keep_trusted(SEED)
            assert len(table) == count

    @pytest.mark.parametrize("is_sound", [True, False])
    def test_a_trusted_frame_without_a_checksum_of_its_head_is_checked_as_a_whole(
        self, is_sound: bool
    ) -> None:
        data = bytes_of()
        put(data, AT + 60, 0, 4)
        put(data, AT + 4, crc32c(bytes(data[AT + 8 : POSITIONS[3]]), SEED), 4)
        if not is_sound:
            put(data, POSITIONS[3] - 8, 0xEE, 1)
        table = table_of(data)
        table.keep_trusted(SEED)
        assert len(table) == (COUNT if is_sound else 2)


def kept(
    serials: list[int], keep: Callable[[FrameTable], None], values: list[list[bytes]] | None = None
) -> int:
    """Return how many frames with these first serials are kept."""
    frames = [
        frame_bytes(rows_frame({1: (values or [[b"v"]] * len(serials))[number]}, serial=serial))
        for number, serial in enumerate(serials)
    ]
    positions = [0, *accumulate(map(len, frames))][:-1]
    table = table_of(bytes_of(frames), positions=positions)
    keep(table)
    return len(table)


@pytest.mark.parametrize(
    ("serials", "start", "following", "rising"),
    [
        ([3, 4, 5], 3, 3, 3),
        ([3, 4, 5], 2, 0, 3),
        ([3, 4, 5], 4, 0, 0),
        ([3, 5, 6], 3, 1, 3),
        ([3, 4, 4], 3, 2, 2),
        ([3, 3, 4], 3, 1, 1),
    ],
)
def test_serials_follow_or_rise(
    serials: list[int], start: int, following: int, rising: int
) -> None:
    assert kept(serials, lambda table: table.keep_following(start)) == following
    assert kept(serials, lambda table: table.keep_rising(start)) == rising


def test_it_holds_as_many_rows_and_bytes_as_are_read_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = [[b"v"], [b"v"] * 3, [b"v"] * 2, [b"v"]]
    serials = [0, 1, 4, 6]
    for rows, count in ((7, 4), (6, 3), (5, 2), (3, 1)):
        monkeypatch.setattr(table_module, "TABLE_ROWS", rows)
        assert kept(serials, FrameTable.keep_limits, values) == count
    for size, count in ((SIZE * 3, 3), (SIZE * 3 - 1, 2)):
        monkeypatch.setattr(table_module, "TABLE_BYTES", size)
        table = table_of(bytes_of())
        monkeypatch.setattr(table_module, "TABLE_ROWS", COUNT)
        table.keep_limits()
        assert len(table) == count
