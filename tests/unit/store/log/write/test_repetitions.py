from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siltstone.store.log.write import repetitions
from siltstone.store.log.write.frame_builder import Call, has_sound_topics
from siltstone.store.log.write.repetitions import without_repetitions
from siltstone.store.writer.producers import ProducerTable, producer_key
from tests.support.builders import call_on

NAMES = [b"", producer_key("ann"), producer_key("bo")]
SENT = st.lists(st.tuples(st.sampled_from(NAMES), st.integers(1, 5), st.sampled_from(["t", "#"])))


def stored_one_by_one(calls: list[Call]) -> list[Call]:
    """Return what is not a repetition when each call is settled before the next comes."""
    highest: dict[bytes, int] = {}
    fresh: list[Call] = []
    for call in calls:
        if call.producer and call.sequence <= highest.get(call.producer, -1):
            continue
        fresh.append(call)
        if call.producer and has_sound_topics(call):
            highest[call.producer] = call.sequence
    return fresh


@given(SENT)
def test_a_flush_keeps_what_calls_one_by_one_would(sent: list[tuple[bytes, int, str]]) -> None:
    calls = [call_on(topic, producer=name, sequence=number) for name, number, topic in sent]
    assert without_repetitions(calls, ProducerTable()) == stored_one_by_one(calls)


def test_topics_of_a_call_are_looked_at_once_however_many_are_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked_at: list[Call] = []

    def look(call: Call) -> bool:
        looked_at.append(call)
        return has_sound_topics(call)

    monkeypatch.setattr(repetitions, "has_sound_topics", look)
    calls = [call_on("t", producer=NAMES[1], sequence=number) for number in [*range(50)] * 3]
    assert without_repetitions(calls, ProducerTable()) == calls[:50]
    assert looked_at == calls[:50]
