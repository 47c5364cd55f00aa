from __future__ import annotations

from siltstone.broker.publish.observers import PublishObservers, SettlePart
from siltstone.errors import OverloadedError
from siltstone.mqtt.publish import PublishBatch
from tests.support.links import batch_of


class OneTap:
    """Takes what there is, and answers when told to."""

    def __init__(self) -> None:
        self.taken: list[tuple[list[bytes], bytes]] = []
        self.settles: list[SettlePart] = []
        self.full_for: list[int] = []

    def refused(self, batch: PublishBatch, publisher: bytes) -> list[int]:
        return self.full_for

    def take(self, batch: PublishBatch, publisher: bytes, settle: SettlePart | None) -> int:
        self.taken.append((batch.topics, publisher))
        if settle is None:
            return 0
        self.settles.append(settle)
        return 1


BATCH = batch_of(("a", b"1", 1))


def test_every_tap_gets_every_batch_and_is_waited_for() -> None:
    taps, one, other = PublishObservers(), OneTap(), OneTap()
    assert taps.take(BATCH, b"c", None) == 0
    taps.add(one)
    taps.add(other)
    assert taps.take(BATCH, b"c", lambda part, error: None) == 2
    assert taps.take(BATCH, b"c", None) == 0
    assert one.taken == other.taken == [([b"a"], b"c")] * 2


def test_what_one_of_them_has_no_room_for_is_refused() -> None:
    taps, one, other = PublishObservers(), OneTap(), OneTap()
    assert taps.refused(BATCH, b"c") == []
    taps.add(one)
    taps.add(other)
    one.full_for, other.full_for = [2, 1], [1, 0]
    assert taps.refused(BATCH, b"c") == [0, 1, 2]


def test_what_may_have_been_missed_is_given_again_before_it_goes_on() -> None:
    taps, one, other = PublishObservers(), OneTap(), OneTap()
    heard: list[Exception | None] = []
    taps.take_again(BATCH, b"c", heard.append)
    assert heard == [None]
    taps.add(one)
    taps.add(other)
    taps.take_again(BATCH, b"c", heard.append)
    one.settles[0](BATCH, None)
    assert heard == [None]
    other.settles[0](BATCH, None)
    assert heard == [None, None]


def test_what_one_cannot_take_again_is_told() -> None:
    taps, one, other = PublishObservers(), OneTap(), OneTap()
    taps.add(one)
    taps.add(other)
    heard: list[Exception | None] = []
    taps.take_again(BATCH, b"c", heard.append)
    error = OverloadedError("scripted")
    one.settles[0](BATCH, error)
    assert heard == []
    other.settles[0](BATCH, None)
    assert heard == [error]
