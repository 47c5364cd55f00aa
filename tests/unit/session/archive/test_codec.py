from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from siltstone.errors import CorruptionError, UsageError
from siltstone.session.archive.codec import (
    SavedProgress,
    decode_group,
    decode_message,
    decode_progress,
    decode_received,
    decode_session,
    decode_subscription,
    encode_group,
    encode_message,
    encode_progress,
    encode_received,
    encode_session,
    encode_subscription,
)
from siltstone.session.archive.records import (
    NOWHERE,
    SavedGroup,
    SavedReceived,
    SavedSession,
    SavedSubscription,
)
from siltstone.store.feed.position import LATEST, Position
from tests.support.archive_builders import GROUP, WHOLE

PROGRESS = SavedProgress(
    Position(WHOLE.position.serials), WHOLE.done, WHOLE.inflight, WHOLE.next_packet_id
)
META = replace(
    WHOLE,
    subscriptions=(),
    position=Position({}, WHOLE.identity),
    done=(),
    inflight=(),
    next_packet_id=1,
    received=(),
    extra=(),
)
SAVED: dict[str, tuple[bytes, Callable[[bytes], object]]] = {
    "session": (encode_session(WHOLE, 3), decode_session),
    "subscription": (encode_subscription(WHOLE.subscriptions[0]), decode_subscription),
    "progress": (encode_progress(PROGRESS), decode_progress),
    "received": (encode_received(WHOLE.received), decode_received),
    "message": (encode_message(WHOLE.extra[0]), decode_message),
    "group": (encode_group(GROUP, 3), decode_group),
}


def test_every_part_comes_back_as_it_was() -> None:
    assert {kind: decode(data) for kind, (data, decode) in SAVED.items()} == {
        "session": (META, 3),
        "subscription": WHOLE.subscriptions[0],
        "progress": PROGRESS,
        "received": WHOLE.received,
        "message": WHOLE.extra[0],
        "group": (replace(GROUP, position=Position({}, "5eed"), done=()), 3),
    }


def test_the_bytes_of_a_session_are_those_of_the_format() -> None:
    session = SavedSession(
        client_id="c", user="u", connected=True, run=2, dropped=1, position=Position({}, "5e")
    )
    assert encode_session(session, 9).hex(" ") == (
        "02 00 00 00 00 00 00 00 09 00 00 00 01 63 00 00 00 01 75 01 05 ff ff ff ff "
        "00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 00 "
        "00 00 00 02 35 65"
    )


def test_what_an_earlier_version_saved_has_no_identity() -> None:
    session, group = encode_session(META, 3), encode_group(GROUP, 3)
    assert (session[-4:], group[-4:]) == (b"5eed", b"5eed")
    assert decode_session(b"\x01" + session[1:-8]) == (replace(META, position=NOWHERE), 3)
    without = replace(GROUP, position=NOWHERE, done=())
    assert decode_group(b"\x01" + group[1:-8]) == (without, 3)


def test_the_bytes_of_a_subscription_are_those_of_the_format() -> None:
    subscription = SavedSubscription(
        filter="a",
        qos=1,
        no_local=True,
        retain_as_published=True,
        retain_handling=2,
        identifier=7,
        since=Position({1: 2}),
    )
    assert encode_subscription(subscription).hex(" ") == (
        "01 00 00 00 01 61 2d 00 00 00 07 00 00 00 01 00 00 00 01 00 00 00 00 00 00 00 02"
    )


@pytest.mark.parametrize("kind", SAVED)
def test_what_a_newer_version_wrote_is_refused_by_name(kind: str) -> None:
    data, decode = SAVED[kind]
    with pytest.raises(UsageError, match=f"a newer version of Siltstone saved the {kind}"):
        decode(bytes([data[0] + 1]) + data[1:])


@pytest.mark.parametrize("kind", SAVED)
def test_what_is_cut_short_or_has_bytes_to_spare_is_damaged(kind: str) -> None:
    data, decode = SAVED[kind]
    for size in range(len(data)):
        with pytest.raises(CorruptionError):
            decode(data[:size])
    with pytest.raises(CorruptionError, match="has extra bytes at its end"):
        decode(data + b"\x00")


def test_a_position_that_names_a_shard_twice_is_damaged() -> None:
    data = encode_progress(PROGRESS).replace(bytes([0, 0, 0, 3]), bytes(4), 1)
    with pytest.raises(CorruptionError, match="names a shard twice"):
        decode_progress(data)


def test_a_text_that_is_none_is_damaged() -> None:
    data = encode_group(SavedGroup(name="g", filter="f"), 1).replace(b"g", b"\xff")
    with pytest.raises(CorruptionError, match="has invalid UTF-8"):
        decode_group(data)


def test_numbers_that_do_not_fit_are_an_error_of_the_call() -> None:
    with pytest.raises(UsageError, match="out of range"):
        encode_received((SavedReceived(65_536),))
    with pytest.raises(UsageError, match="out of range"):
        encode_progress(PROGRESS._replace(position=Position({0: LATEST})))


def test_the_progress_of_one_shard_without_messages_is_encoded_as_every_other_one() -> None:
    progress = SavedProgress(Position({3: 1 << 40}), next_packet_id=7)
    # The version, the packet id, one place, no ranges, no messages in flight.
    data = bytes.fromhex("01 0007 00000001 00000003 0000010000000000 00000000 00000000")
    assert encode_progress(progress) == data
    assert decode_progress(data) == progress
    with pytest.raises(UsageError, match="out of range"):
        encode_progress(progress._replace(next_packet_id=1 << 16))
