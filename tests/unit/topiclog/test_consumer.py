from __future__ import annotations

import pytest

from siltstone.errors import NotFoundError, UsageError
from siltstone.topiclog.consumer import Message, MessageBatch, TopicReader
from siltstone.topiclog.protocol import BatchHead, FetchPlace, encode_batch_heads
from siltstone.topiclog.tables import table_of_offsets
from tests.support.topiclog import offsets_of


def reply(*batches: tuple[int, int, list[bytes]]) -> memoryview:
    """Return what a server says: place, first offset and messages of each batch."""
    heads = [
        BatchHead(place=place, first=first, end=99, count=len(values), data_bytes=size)
        for place, first, values in batches
        for size in [sum(map(len, values))]
    ]
    parts = [
        table_of_offsets(memoryview(offsets_of(values)).cast("i")) + b"".join(values)
        for _, _, values in batches
    ]
    return memoryview(encode_batch_heads(heads) + b"".join(parts))


def values_left(subscription: TopicReader) -> list[bytes]:
    return [message.value for message in iter(subscription.next_message, None)]


def test_messages_come_one_of_each_topic_in_turn() -> None:
    subscription = TopicReader({"1": 0, "2": 0, "3": 0})
    places = subscription.places()
    assert [place.topic for place in places] == ["1", "2", "3"]
    subscription.take_in(places, reply((0, 0, [b"1A", b"1B", b"1C"]), (2, 0, [b"3A", b"3B"])))
    assert values_left(subscription) == [b"1A", b"3A", b"1B", b"3B", b"1C"]
    # The turn goes on behind the topic that was last.
    assert [place.topic for place in subscription.places()] == ["2", "3", "1"]
    assert [subscription.position(topic) for topic in "123"] == [3, 0, 2]


def test_only_what_is_not_held_is_asked_for() -> None:
    subscription = TopicReader({"1": 5, "2": 0})
    subscription.take_in(subscription.places(), reply((0, 5, [b"a", b"b"])))
    assert subscription.places() == (FetchPlace(topic="2", offset=0),)
    assert subscription.next_message() == Message("1", 5, b"a")
    assert subscription.position("1") == 6


def test_a_batch_is_handed_out_whole_or_what_is_left_of_it() -> None:
    subscription = TopicReader({"1": 0})
    subscription.take_in(
        subscription.places(), reply((0, 0, [b"a", b"bb", b"ccc"]), (0, 3, [b"d"]))
    )
    subscription.next_message()
    batch = subscription.next_batch()
    assert batch is not None
    assert (batch.first_offset, batch.values(), len(batch)) == (1, [b"bb", b"ccc"], 2)
    assert [(message.offset, message.value) for message in batch] == [(1, b"bb"), (2, b"ccc")]
    assert subscription.position("1") == 3
    last = subscription.next_batch()
    assert last is not None
    assert last.values() == [b"d"]
    assert subscription.next_batch() is None


def test_a_seek_forgets_what_is_held() -> None:
    subscription = TopicReader({"1": 0})
    subscription.take_in(subscription.places(), reply((0, 0, [b"a", b"b"])))
    subscription.next_message()
    subscription.seek("1", 0)
    assert subscription.next_message() is None
    assert subscription.places() == (FetchPlace(topic="1", offset=0),)
    for offset in (-1, 1 << 64):
        with pytest.raises(UsageError) as refused:
            subscription.seek("1", offset)
        assert str(refused.value) == f"offset must be from 0 to 2**64 - 1, got {offset}"


def test_a_position_that_is_not_there_goes_where_the_server_says() -> None:
    subscription = TopicReader({"old": 3, "far": 90})
    subscription.take_in(subscription.places(), reply((0, 10, [b"a"]), (1, 50, [])))
    assert subscription.position("far") == 50
    assert subscription.next_message() == Message("old", 10, b"a")


def test_messages_that_damage_took_are_passed_over() -> None:
    subscription = TopicReader({"1": 0})
    subscription.take_in(subscription.places(), reply((0, 0, [b"a"]), (0, 5, [b"f"])))
    subscription.next_message()
    assert subscription.position("1") == 5
    assert subscription.next_message() == Message("1", 5, b"f")


def test_topics_that_are_not_read_are_unknown() -> None:
    subscription = TopicReader({"1": 0})
    assert subscription.topics == ["1"]
    for ask in (lambda: subscription.position("2"), lambda: subscription.seek("2", 0)):
        with pytest.raises(NotFoundError, match="has not subscribed to topic '2'"):
            ask()


def test_a_batch_knows_where_it_ends() -> None:
    batch = MessageBatch(topic="t", first_offset=7, ends=[0, 1, 3], data=memoryview(b"abb"))
    assert (batch.next_offset, batch.message(1)) == (9, Message("t", 8, b"bb"))


def test_one_topic_alone_goes_on_behind_all_that_is_held() -> None:
    subscription = TopicReader({"1": 0})
    assert subscription.place_ahead() is None
    subscription.take_in(subscription.places(), reply((0, 0, [b"a", b"b"]), (0, 2, [b"c"])))
    assert subscription.place_ahead() == FetchPlace(topic="1", offset=3)
    several = TopicReader({"1": 0, "2": 0})
    several.take_in(several.places(), reply((0, 0, [b"a"]), (1, 0, [b"b"])))
    assert several.place_ahead() is None
