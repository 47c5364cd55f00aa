from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from siltstone.errors import InvalidTopicError, UsageError
from siltstone.store.iterator import StreamIterator, StreamRef
from siltstone.store.manifest import SlabId
from siltstone.topic.grammar import TopicFilter

STREAM = StreamRef(
    database="plant", slab=SlabId(3, 7), stream_id=2**64 - 1, pattern="metrics/+/größe"
)
ITERATOR = StreamIterator(
    database="plant",
    slab=SlabId(3, 7),
    stream_id=2**63,
    next_serial=2**64 - 2,
    since_us=-5,
    filter=TopicFilter.parse("metrics/+/#"),
)


def text(value: str) -> bytes:
    return struct.pack("<I", len(value.encode())) + value.encode()


class TestBytes:
    def test_every_byte_of_a_stream_stands_where_the_format_says(self) -> None:
        head = struct.pack("<2sBIIQ", b"SS", 1, 3, 7, 2**64 - 1)
        assert STREAM.to_bytes() == head + text("plant") + text("metrics/+/größe")

    def test_every_byte_of_an_iterator_stands_where_the_format_says(self) -> None:
        head = struct.pack("<2sBIIQQq", b"SI", 1, 3, 7, 2**63, 2**64 - 2, -5)
        assert ITERATOR.to_bytes() == head + text("plant") + text("metrics/+/#")

    def test_a_stream_comes_back_from_its_bytes(self) -> None:
        assert StreamRef.from_bytes(STREAM.to_bytes()) == STREAM

    def test_an_iterator_comes_back_from_its_bytes(self) -> None:
        assert StreamIterator.from_bytes(ITERATOR.to_bytes()) == ITERATOR

    def test_a_shared_filter_keeps_its_group(self) -> None:
        shared = replace(ITERATOR, filter=TopicFilter.parse("$share/group/a/+"))
        assert StreamIterator.from_bytes(shared.to_bytes()) == shared

    def test_the_pattern_of_a_topic_of_empty_levels_fits(self) -> None:
        stream = replace(STREAM, pattern="/".join("+" * 40_000))
        assert StreamRef.from_bytes(stream.to_bytes()) == stream

    def test_a_position_continues_with_another_serial(self) -> None:
        assert ITERATOR.at(9) == replace(ITERATOR, next_serial=9)


class TestBroken:
    @pytest.mark.parametrize("length", range(len(STREAM.to_bytes())))
    def test_a_stream_that_was_cut_is_refused(self, length: int) -> None:
        with pytest.raises(UsageError, match="saved stream"):
            StreamRef.from_bytes(STREAM.to_bytes()[:length])

    @pytest.mark.parametrize("length", range(len(ITERATOR.to_bytes())))
    def test_an_iterator_that_was_cut_is_refused(self, length: int) -> None:
        with pytest.raises(UsageError, match="saved iterator"):
            StreamIterator.from_bytes(ITERATOR.to_bytes()[:length])

    def test_a_stream_is_no_iterator(self) -> None:
        with pytest.raises(UsageError, match=r"^these bytes are no saved iterator$"):
            StreamIterator.from_bytes(STREAM.to_bytes())

    def test_an_iterator_is_no_stream(self) -> None:
        with pytest.raises(UsageError, match=r"^these bytes are no saved stream$"):
            StreamRef.from_bytes(ITERATOR.to_bytes())

    def test_another_version_is_refused(self) -> None:
        data = b"SI\x02" + ITERATOR.to_bytes()[3:]
        with pytest.raises(UsageError, match=r"^saved iterator of an unknown version: version=2$"):
            StreamIterator.from_bytes(data)

    def test_bytes_behind_the_end_are_refused(self) -> None:
        with pytest.raises(UsageError, match=r"^saved stream has bytes to spare$"):
            StreamRef.from_bytes(STREAM.to_bytes() + b"\0")

    def test_text_that_is_not_utf_8_is_refused(self) -> None:
        data = STREAM.to_bytes().replace(b"plant", b"pl\xffnt")
        with pytest.raises(UsageError, match=r"^these bytes are no saved stream$"):
            StreamRef.from_bytes(data)

    def test_a_filter_that_is_none_is_refused(self) -> None:
        data = ITERATOR.to_bytes().replace(b"metrics/+/#", b"metrics/#/+")
        with pytest.raises(InvalidTopicError):
            StreamIterator.from_bytes(data)
