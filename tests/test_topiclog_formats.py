"""What docs/formats.md says of topic logs is what the code does: it is decoded from its text."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from siltstone.store.segment.frame import APART, PLACE, ROOM
from siltstone.topiclog.protocol import (
    HEADER,
    RequestKind,
    ResponseStatus,
    encode_offset,
    encode_version,
    reply,
    request,
    send_head,
)
from siltstone.topiclog.tables import table_of_ends
from tests.test_formats import DUMP_LINE, field_table, part, stated_value, tables

Line = tuple[int, bytes, str, str]


def dumps() -> list[list[Line]]:
    """Return the two dumps of the conversation: what the client says, and the reply."""
    found: list[list[Line]] = []
    for line in part("A conversation").splitlines():
        match = DUMP_LINE.fullmatch(line)
        if match is None:
            assert not line.startswith("    "), line
            continue
        if int(match[1], 16) == 0:
            found.append([])
        found[-1].append((int(match[1], 16), bytes.fromhex(match[2]), match[3], match[4]))
    return found


def joined(lines: Sequence[Line]) -> bytes:
    return b"".join(data for _, data, _, _ in lines)


def test_the_conversation_is_what_the_code_says() -> None:
    said, answered = (joined(lines) for lines in dumps())
    head = send_head(2, "a/b", table=table_of_ends([b"hi", b"there"]), data_bytes=7)
    assert said == request(RequestKind.HELLO, 1, payload=encode_version()) + head + b"hithere"
    assert answered == reply(RequestKind.SEND, 2, encode_offset(0))


def test_every_line_of_the_conversation_says_what_its_bytes_are() -> None:
    for lines in dumps():
        position = 0
        for offset, data, code, value in lines:
            assert offset == position
            assert struct.unpack(f"!{code}", data) == stated_value(code, value)
            position += len(data)


def test_the_head_has_the_fields_of_the_code() -> None:
    fields = field_table("Topic log protocol")
    assert [size for _, size, _ in fields] == [4, 1, 1, 2, 4, 0]
    assert [offset for offset, _, _ in fields] == [0, 4, 5, 6, 8, HEADER.size]


def test_kinds_and_statuses_have_the_numbers_of_the_code() -> None:
    (kinds,) = tables(part("Requests"))
    assert {name: int(number) for number, name, *_ in kinds} == {
        kind.name: kind.value for kind in RequestKind
    }
    (statuses,) = tables(part("Statuses"))
    assert {name: int(number) for number, name, _ in statuses} == {
        status.name: status.value for status in ResponseStatus
    }


def test_rooms_and_values_that_stand_apart_have_the_numbers_of_the_code() -> None:
    fields = {field.split(":")[0]: field for _, _, field in field_table("Frame")}
    assert f"{ROOM} room" in fields["kind"]
    assert f"{APART} none, and the values stand apart" in fields["compression of the body"]
    assert PLACE.size == 24
