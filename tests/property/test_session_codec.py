"""Whatever is kept of a session or group comes back as it was, and damage is never taken for it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

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
from siltstone.session.archive.keys import word
from siltstone.session.archive.records import (
    SavedGroup,
    SavedInflight,
    SavedMessage,
    SavedReceived,
    SavedSession,
    SavedSubscription,
    SerialRange,
)
from siltstone.store.feed.position import Position
from siltstone.topic.grammar import check_topic
from tests.support import archive_builders as build

names = st.text(st.sampled_from('!"#$*+,-./0a\x01\x02\x03é'), max_size=6)


@given(build.metas, build.revisions)
def test_sessions_come_back(session: SavedSession, revision: int) -> None:
    assert decode_session(encode_session(session, revision)) == (session, revision)


@given(build.subscriptions)
def test_subscriptions_come_back(subscription: SavedSubscription) -> None:
    assert decode_subscription(encode_subscription(subscription)) == subscription


@given(build.places, build.ranges, build.inflight, build.packet_ids)
def test_progress_comes_back(
    position: Position,
    done: tuple[SerialRange, ...],
    inflight: tuple[SavedInflight, ...],
    next_packet_id: int,
) -> None:
    progress = SavedProgress(position, done, inflight, next_packet_id)
    assert decode_progress(encode_progress(progress)) == progress


@given(build.received, build.messages)
def test_received_and_messages_come_back(
    received: tuple[SavedReceived, ...], message: SavedMessage
) -> None:
    assert decode_received(encode_received(received)) == received
    assert decode_message(encode_message(message)) == message


@given(build.groups, build.revisions)
def test_groups_come_back(group: SavedGroup, revision: int) -> None:
    assert decode_group(encode_group(group, revision)) == (group, revision)


@given(st.binary(max_size=80))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    outcomes = []
    for decode in (
        decode_session,
        decode_subscription,
        decode_progress,
        decode_received,
        decode_message,
        decode_group,
    ):
        try:
            outcomes.append(decode(data) is not None)
        except (CorruptionError, UsageError) as exc:
            outcomes.append(bool(str(exc)))
    assert outcomes == [True] * 6


@given(names, names)
def test_words_sort_as_their_texts_do_and_fit_a_topic(one: str, other: str) -> None:
    encoded = [word(text).encode() + b"\x00" for text in (one, other)]
    texts = [text.encode() + b"\x00" for text in (one, other)]
    assert (encoded[0] < encoded[1]) == (texts[0] < texts[1])
    assert (encoded[0] == encoded[1]) == (one == other)
    check_topic(f"session/{word(one)}/filter/{word(other)}".encode())
    assert "/" not in word(one)


def test_a_long_text_is_a_short_word_of_its_own() -> None:
    texts = ["a" * 5_000, "a" * 5_001, "/" * 5_000]
    words = [word(text) for text in texts]
    assert len({*words}) == len(texts)
    assert {len(one) for one in words} == {34}
