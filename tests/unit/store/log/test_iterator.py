from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace

import pytest

from siltstone.errors import InvalidTopicError, SlabDroppedError, UsageError
from siltstone.store.log.iterator import StreamIterator, StreamRef, require_place, require_times
from siltstone.store.slab.manifest import SlabId
from siltstone.topic.grammar import TopicFilter
from tests.support.builders import new_database, rows_on

STREAM = StreamRef(
    database="plant",
    slab=SlabId(3, 7),
    stream_id=2**64 - 1,
    pattern="metrics/+/größe",
    identity="5eed",
)
ITERATOR = StreamIterator(
    database="plant",
    slab=SlabId(3, 7),
    stream_id=2**63,
    next_serial=2**64 - 2,
    since_us=-5,
    filter=TopicFilter.parse("metrics/+/#"),
    identity="5eed",
)


def text(value: str) -> bytes:
    return struct.pack("<I", len(value.encode())) + value.encode()


class TestBytes:
    def test_every_byte_of_a_stream_stands_where_the_format_says(self) -> None:
        head = struct.pack("<2sBIIQ", b"SS", 2, 3, 7, 2**64 - 1)
        texts = text("plant") + text("5eed") + text("metrics/+/größe")
        assert STREAM.to_bytes() == head + texts

    def test_every_byte_of_an_iterator_stands_where_the_format_says(self) -> None:
        head = struct.pack("<2sBIIQQq", b"SI", 2, 3, 7, 2**63, 2**64 - 2, -5)
        assert ITERATOR.to_bytes() == head + text("plant") + text("5eed") + text("metrics/+/#")

    def test_what_was_saved_before_there_were_identities_is_read_and_written_as_it_was(
        self,
    ) -> None:
        stream = struct.pack("<2sBIIQ", b"SS", 1, 3, 7, 2**64 - 1)
        stream += text("plant") + text("metrics/+/größe")
        iterator = struct.pack("<2sBIIQQq", b"SI", 1, 3, 7, 2**63, 2**64 - 2, -5)
        iterator += text("plant") + text("metrics/+/#")
        assert StreamRef.from_bytes(stream) == replace(STREAM, identity="")
        assert StreamRef.from_bytes(stream).to_bytes() == stream
        assert StreamIterator.from_bytes(iterator) == replace(ITERATOR, identity="")
        assert StreamIterator.from_bytes(iterator).to_bytes() == iterator

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
        with pytest.raises(
            UsageError, match=r"^invalid saved iterator: the bytes do not come from to_bytes$"
        ):
            StreamIterator.from_bytes(STREAM.to_bytes())

    def test_an_iterator_is_no_stream(self) -> None:
        with pytest.raises(
            UsageError, match=r"^invalid saved stream: the bytes do not come from to_bytes$"
        ):
            StreamRef.from_bytes(ITERATOR.to_bytes())

    def test_another_version_is_refused(self) -> None:
        data = b"SI\x03" + ITERATOR.to_bytes()[3:]
        with pytest.raises(UsageError, match=r"^unknown version 3 of a saved iterator$"):
            StreamIterator.from_bytes(data)

    def test_an_identity_that_is_empty_is_refused_where_there_must_be_one(self) -> None:
        data = STREAM.to_bytes().replace(text("5eed"), text(""))
        with pytest.raises(UsageError, match=r"^invalid saved stream: empty identity$"):
            StreamRef.from_bytes(data)

    def test_bytes_behind_the_end_are_refused(self) -> None:
        with pytest.raises(UsageError, match=r"^invalid saved stream: extra bytes at the end$"):
            StreamRef.from_bytes(STREAM.to_bytes() + b"\0")

    def test_text_that_is_not_utf_8_is_refused(self) -> None:
        data = STREAM.to_bytes().replace(b"plant", b"pl\xffnt")
        with pytest.raises(
            UsageError, match=r"^invalid saved stream: the bytes do not come from to_bytes$"
        ):
            StreamRef.from_bytes(data)

    def test_a_filter_that_is_none_is_refused(self) -> None:
        data = ITERATOR.to_bytes().replace(b"metrics/+/#", b"metrics/#/+")
        with pytest.raises(InvalidTopicError):
            StreamIterator.from_bytes(data)


class TestChecks:
    @pytest.mark.parametrize("place", [STREAM, ITERATOR], ids=["stream", "iterator"])
    def test_a_place_is_good_in_the_database_that_gave_it_out(
        self, place: StreamRef | StreamIterator
    ) -> None:
        require_place(place, database="plant", identity="5eed")
        require_place(replace(place, identity=""), database="plant", identity="5eed")

    @pytest.mark.parametrize(
        ("place", "noun"), [(STREAM, "stream"), (ITERATOR, "iterator")], ids=["stream", "iterator"]
    )
    def test_in_another_database_it_is_refused_also_in_one_of_the_same_name(
        self, place: StreamRef | StreamIterator, noun: str
    ) -> None:
        with pytest.raises(UsageError, match=rf"^the {noun} belongs to another database: 'plant'$"):
            require_place(place, database="other", identity="5eed")
        with pytest.raises(SlabDroppedError) as caught:
            require_place(place, database="plant", identity="later")
        assert str(caught.value) == (
            f"the {noun} belongs to an earlier database 'plant', which was dropped"
        )

    def test_times_are_of_64_bits_so_that_they_can_be_saved(self) -> None:
        for time_us in (-(2**63), 2**63 - 1):
            require_times(time_us, time_us)
        for time_us in (-(2**63) - 1, 2**63):
            with pytest.raises(UsageError) as caught:
                require_times(time_us)
            assert str(caught.value) == f"since_us must fit into 64 bits: since_us={time_us}"
            with pytest.raises(UsageError) as caught:
                require_times(0, time_us)
            assert str(caught.value) == f"until_us must fit into 64 bits: until_us={time_us}"

    @pytest.mark.parametrize("time_us", [-(2**63) - 1, 2**63])
    def test_every_call_of_a_database_that_takes_times_refuses_others(self, time_us: int) -> None:
        with new_database() as database:
            database.append(rows_on("t")).wait()
            (stream,) = database.streams()
            iterator = database.iterator(stream, "#", 2**63 - 1)
            assert StreamIterator.from_bytes(iterator.to_bytes()) == iterator
            calls: list[Callable[[], object]] = [
                lambda: database.streams("#", time_us),
                lambda: database.iterator(stream, "#", time_us),
                lambda: database.next(replace(iterator, since_us=time_us)),
                lambda: database.next(iterator, until_us=time_us),
                lambda: database.read(since_us=time_us),
                lambda: database.read(until_us=time_us),
                lambda: database.count(since_us=time_us),
                lambda: database.count(until_us=time_us),
                lambda: database.holes(since_us=time_us),
                lambda: database.holes(until_us=time_us),
                lambda: database.choose(stream.slab, [], range(1), since_us=time_us),
                lambda: database.choose(stream.slab, [], range(1), until_us=time_us),
                lambda: database.feed(since_us=time_us),
            ]
            for call in calls:
                with pytest.raises(UsageError, match=f"_us must fit into 64 bits: .*{time_us}$"):
                    call()
