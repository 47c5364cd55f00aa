from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siltstone.errors import (
    InvalidTopicError,
    OutcomeUnknownError,
    OverloadedError,
    RetryError,
    SiltstoneError,
    UsageError,
)
from siltstone.rows.batch import RowBatch
from siltstone.store.log.write.frame_builder import Call
from siltstone.store.shard.replicated.calls import (
    decode_answer,
    decode_call,
    encode_answer,
    encode_call,
)
from siltstone.store.shard.replicated.port import (
    NotLeaderError,
    OutOfOrderError,
    UnknownVersionError,
)
from siltstone.store.writer.replication.messages import ProducerCall
from siltstone.store.writer.ticket import Outcome, RowPlaces

ROWS = st.lists(
    st.tuples(st.binary(max_size=9), st.binary(max_size=300), st.integers(0, 7)), max_size=20
)


def batch_of(rows: list[tuple[bytes, bytes, int]]) -> RowBatch:
    batch = RowBatch()
    batch.topics = [topic for topic, _, _ in rows]
    batch.values = [value for _, value, _ in rows]
    batch.flags = [flags for _, _, flags in rows]
    batch.publisher = b"device"
    batch.measure()
    return batch


def test_a_call_of_another_version_is_sent_again_later() -> None:
    call = Call(batch_of([(b"t", b"1", 0)]))
    call.claim = ProducerCall(producer=b"p" * 16, number=4, previous=3)
    data = encode_call(call)
    for other in (b"\x00" + data[1:], b"\x02" + data[1:]):
        with pytest.raises(UnknownVersionError, match="unknown version"):
            decode_call(other)
    answer = decode_answer(encode_answer(UnknownVersionError("version=02")))
    assert isinstance(answer, UnknownVersionError)


@given(rows=ROWS, wants_sync=st.booleans(), owns=st.booleans())
def test_a_call_arrives_as_it_was_sent(
    *, rows: list[tuple[bytes, bytes, int]], wants_sync: bool, owns: bool
) -> None:
    call = Call(batch_of(rows))
    call.wants_sync = wants_sync
    if owns:
        call.producer, call.sequence = b"q" * 16, 7
    else:
        call.claim = ProducerCall(producer=b"p" * 16, number=4, previous=3)
    found = decode_call(encode_call(call))
    assert found.batch.topics == call.batch.topics
    assert found.batch.values == call.batch.values
    assert found.batch.flags == call.batch.flags
    assert found.batch.publisher == b"device"
    assert found.batch.shared_flags == call.batch.shared_flags
    assert found.batch.size_bytes == call.batch.size_bytes
    assert (found.wants_sync, found.claim) == (wants_sync, call.claim)
    assert (found.producer, found.sequence) == (call.producer, call.sequence)


def test_a_call_that_is_cut_short_is_refused() -> None:
    call = Call(batch_of([(b"t", b"value", 1)]))
    call.claim = ProducerCall(producer=b"p" * 16, number=1, previous=0)
    data = encode_call(call)
    for end in range(len(data)):
        with pytest.raises(UsageError, match="cannot be read"):
            decode_call(data[:end])


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (NotLeaderError("x"), NotLeaderError),
        (OutOfOrderError("x"), OutOfOrderError),
        (OverloadedError("x"), OverloadedError),
        (RetryError("x"), RetryError),
        (InvalidTopicError("x"), InvalidTopicError),
        (UsageError("x"), UsageError),
        (OutcomeUnknownError("x"), OutcomeUnknownError),
        (SiltstoneError("x"), OutcomeUnknownError),
        (ValueError("x"), OutcomeUnknownError),
    ],
)
def test_an_error_arrives_as_what_the_sender_must_do(
    error: Exception, kind: type[SiltstoneError]
) -> None:
    found = decode_answer(encode_answer(error))
    assert type(found) is kind
    assert str(found) == "x"


def test_an_outcome_has_the_serials_of_all_rows() -> None:
    known = RowPlaces.of(2, [1, 0, 5])
    outcome = Outcome(
        duplicate=False,
        count=3,
        timestamp_us=102,
        frame_serial=10,
        frame_timestamp_us=100,
        frame_places=known,
    )
    found = decode_answer(encode_answer(outcome))
    assert isinstance(found, Outcome)
    assert found.serials() == outcome.serials() == [11, 10, 15]


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"error": "retry"}', b"\xff"])
def test_an_answer_that_cannot_be_read_is_an_unknown_outcome(data: bytes) -> None:
    assert isinstance(decode_answer(data), OutcomeUnknownError)
