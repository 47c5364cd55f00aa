from __future__ import annotations

import pytest

from siltstone.snapshot.format.codec import FIELDS, KINDS, RecordError, decode_record, encode_record
from siltstone.snapshot.format.records import Handshakes, Record, SessionState, SubscriptionState
from tests.support.snapshots import ABOUT, EVERY_KIND, session


class Numbers:
    """Numbers contents as they come."""

    def __init__(self) -> None:
        self.contents = [b""]

    def number(self, content: bytes) -> int:
        if content not in self.contents:
            self.contents.append(content)
        return self.contents.index(content)

    def content(self, number: int) -> bytes:
        return self.contents[number]


@pytest.mark.parametrize("record", [ABOUT, *EVERY_KIND], ids=lambda record: type(record).__name__)
def test_every_kind_is_read_as_it_was_written(record: Record) -> None:
    numbers = Numbers()
    kind, body = encode_record(record, numbers.number)
    assert decode_record(kind, body, numbers.content) == record


def test_the_bytes_of_a_session_are_these() -> None:
    body = encode_record(session("é"), Numbers().number)[1]
    assert body == bytes.fromhex("02000000 c3a9 00000000 3c000000 0500000000000000")


def test_numbers_of_kinds_are_as_they_have_always_been() -> None:
    assert {kind: known[0].__name__ for kind, known in FIELDS.items()} == {
        1: "About",
        3: "RetainedMessage",
        4: "SessionState",
        5: "SubscriptionState",
        6: "QueuedMessage",
        7: "Handshakes",
        8: "WaitingWill",
        9: "ReaderPosition",
        10: "LearnedStructure",
        11: "StoredFile",
        12: "FilePart",
        13: "KeyValueFamily",
        14: "KeyValuePair",
    }


@pytest.mark.parametrize("record", EVERY_KIND, ids=lambda record: type(record).__name__)
def test_a_body_that_is_cut_short_or_goes_on_is_no_record(record: Record) -> None:
    numbers = Numbers()
    kind, body = encode_record(record, numbers.number)
    for wrong in (*(body[:end] for end in range(len(body))), body + b"\0"):
        with pytest.raises(RecordError):
            decode_record(kind, wrong, numbers.content)


def test_an_unknown_kind_is_no_record() -> None:
    with pytest.raises(RecordError, match="unknown kind of record 200"):
        decode_record(200, b"", Numbers().content)


def test_text_that_is_no_utf_8_is_no_record() -> None:
    with pytest.raises(RecordError, match="a record is damaged: kind=4"):
        decode_record(KINDS[SessionState], b"\x01\0\0\0\xff" + bytes(16), Numbers().content)


@pytest.mark.parametrize("kind", [KINDS[SubscriptionState], KINDS[Handshakes]])
def test_a_length_is_not_believed_before_it_was_compared(kind: int) -> None:
    with pytest.raises(RecordError, match="a field is longer than its record"):
        decode_record(kind, b"\xff\xff\xff\xff", Numbers().content)
