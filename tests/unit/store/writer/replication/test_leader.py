"""A leader: admission of calls, frozen bytes, the window, answers, deposition."""

from __future__ import annotations

import pytest

from siltstone.errors import UsageError
from siltstone.store.writer.replication.actions import (
    CallStored,
    Closed,
    Confirmed,
    PublishMessage,
    Refused,
    StepDown,
    StoreMessage,
    Unknown,
)
from siltstone.store.writer.replication.codec import decode
from siltstone.store.writer.replication.leader import (
    DEPOSED,
    FENCED,
    OUT_OF_ORDER,
    WITHDRAWN,
    CallAdmission,
)
from siltstone.store.writer.replication.messages import MessageKind, ProducerCall, RecordMessage
from tests.support.replication_log import OneSite, P, Q, others, published


def test_a_call_is_acknowledged_when_its_record_counts_in_the_own_tail() -> None:
    site = OneSite().lead()
    (data,) = site.call(9, 1, 0)
    actions = site.store(data)
    assert [type(action) for action in actions] == [StoreMessage, CallStored]
    assert actions[1] == CallStored(9)


def test_records_ahead_of_the_log_carry_the_chain_that_will_stand_before_them() -> None:
    site = OneSite().lead()
    first, second = site.call(1, 1, 0)[0], site.call(2, 2, 1)[0]
    assert site.store(second) == []
    assert CallStored(1) in site.store(first)
    assert CallStored(2) in site.store(second)
    record = decode(second)
    assert isinstance(record, RecordMessage)
    assert (record.place.index, record.place.seen) == (4, 2)


def test_the_outbox_is_published_again_byte_for_byte_until_it_counts() -> None:
    site = OneSite().lead()
    first, second = site.call(1, 1, 0)[0], site.call(2, 2, 1)[0]
    assert published(site.shard.publish_again()) == [first, second]
    site.store(first)
    assert published(site.shard.publish_again()) == [second]
    site.store(second)
    assert site.shard.publish_again() == []


def test_a_repetition_is_answered_when_the_first_attempt_has_counted() -> None:
    site = OneSite().lead()
    (data,) = site.call(1, 1, 0)
    repeated = ProducerCall(producer=P, number=1, previous=0)
    assert site.shard.admit(2, repeated) == (CallAdmission.WAITS, [])
    assert site.store(data)[1:] == [CallStored(1), CallStored(2)]
    assert site.shard.admit(3, repeated) == (CallAdmission.ANSWERED, [CallStored(3)])


def test_a_repetition_of_an_admitted_call_waits_for_its_record() -> None:
    site = OneSite().lead()
    call = ProducerCall(producer=P, number=1, previous=0)
    assert site.shard.admit(1, call) == (CallAdmission.TAKEN, [])
    assert site.shard.admit(2, call) == (CallAdmission.WAITS, [])
    (data,) = published(site.shard.freeze(MessageKind.ROWS, b"row"))
    assert site.store(data)[1:] == [CallStored(1), CallStored(2)]


def test_a_call_whose_previous_call_is_missing_is_refused_with_the_last_number() -> None:
    site = OneSite().lead()
    site.store(site.call(1, 1, 0)[0])
    refused = Refused(request=2, reason=OUT_OF_ORDER, last=1)
    late = ProducerCall(producer=P, number=3, previous=2)
    assert site.shard.admit(2, late) == (CallAdmission.ANSWERED, [refused])


def test_the_producers_of_the_outbox_count_for_the_order_of_calls() -> None:
    site = OneSite().lead()
    site.call(1, 1, 0)
    following = ProducerCall(producer=P, number=2, previous=1)
    assert site.shard.admit(2, following) == (CallAdmission.TAKEN, [])
    other = ProducerCall(producer=Q, number=5, previous=0)
    assert site.shard.admit(3, other) == (CallAdmission.TAKEN, [])


def test_withdrawn_calls_are_refused_and_may_be_sent_again() -> None:
    site = OneSite().lead()
    site.call(1, 1, 0)
    for request, number in ((2, 2), (3, 3)):
        site.shard.admit(request, ProducerCall(producer=P, number=number, previous=number - 1))
    assert site.shard.withdraw() == [
        Refused(request=2, reason=WITHDRAWN, last=0),
        Refused(request=3, reason=WITHDRAWN, last=0),
    ]
    assert (
        site.shard.admit(4, ProducerCall(producer=P, number=2, previous=1))[0]
        is CallAdmission.TAKEN
    )


def test_the_window_bounds_what_is_under_way() -> None:
    site = OneSite(window=2).lead()
    leader = site.shard.leader
    assert leader is not None
    first = site.call(1, 1, 0)[0]
    assert leader.room()
    site.call(2, 2, 1)
    assert (leader.room(), leader.under_way(), leader.oldest()) == (False, 2, 3)
    with pytest.raises(UsageError, match="the window is full: records=2"):
        site.call(3, 3, 2)
    site.store(first)
    assert (leader.room(), leader.under_way(), leader.oldest()) == (True, 1, 4)


def test_a_record_with_more_parts_than_the_window_goes_alone() -> None:
    site = OneSite(window=2, part_bytes=10).lead()
    leader = site.shard.leader
    assert leader is not None
    assert leader.room(1000)
    parts = site.call(1, 1, 0)
    assert len(parts) == 4
    answers = [action for data in parts for action in site.store(data)]
    assert [type(action) for action in answers] == [
        StoreMessage,
        StoreMessage,
        StoreMessage,
        StoreMessage,
        CallStored,
    ]
    changes = [action.change for action in answers if isinstance(action, StoreMessage)]
    assert changes[:3] == [None, None, None]
    assert changes[3] is not None
    assert changes[3].payload == b"row"


def test_only_rows_and_key_value_changes_carry_calls() -> None:
    site = OneSite().lead()
    site.shard.admit(1, ProducerCall(producer=P, number=1, previous=0))
    with pytest.raises(UsageError, match="DROP carries no calls"):
        site.shard.freeze(MessageKind.DROP, b"")
    with pytest.raises(UsageError, match="FENCE carries no calls"):
        site.shard.freeze(MessageKind.FENCE, b"")


@pytest.mark.parametrize("kind", [MessageKind.DROP, MessageKind.ROLL, MessageKind.SETTINGS])
def test_changes_without_calls_count_like_rows(kind: MessageKind) -> None:
    site = OneSite().lead()
    (data,) = published(site.shard.freeze(kind, b"what"))
    (store,) = site.store(data)
    assert isinstance(store, StoreMessage)
    assert store.change is not None
    assert (store.change.kind, store.change.payload) == (kind, b"what")


@pytest.mark.parametrize(("name", "boot"), [("b", 1), ("a", 2), ("a", 1)])
def test_any_higher_term_refuses_the_outbox_for_certain(name: str, boot: int) -> None:
    site = OneSite().lead()
    (data,) = site.call(1, 1, 0)
    site.shard.admit(2, ProducerCall(producer=P, number=2, previous=1))
    site.shard.ask(3)
    site.shard.close(4, Q)
    actions = site.store(site.term(name, boot))
    assert actions[1] == StepDown(1)
    assert {action.request for action in actions if isinstance(action, Refused)} == {1, 2, 3, 4}
    assert all(action.reason == DEPOSED for action in actions if isinstance(action, Refused))
    # What was published by the old leader is ignored for ever.
    assert site.store(data) == []
    assert (site.shard.leader is not None) == ((name, boot) == ("a", 1))


def test_a_record_of_our_term_that_we_did_not_freeze_stops_the_site() -> None:
    site = OneSite().lead()
    (data,) = site.call(1, 1, 0)
    other = OneSite().lead()
    (forged,) = other.call(1, 7, 0)
    assert forged != data
    actions = site.store(forged)
    assert actions[:2] == [StepDown(1), Unknown(1)]
    assert "did not publish: index=3" in str(actions[2])


def test_a_fence_closes_a_producer_and_answers_its_last_number() -> None:
    site = OneSite().lead()
    (row,) = site.call(1, 4, 0)
    (fence,) = published(site.shard.close(2, P))
    refused = Refused(request=3, reason=FENCED, last=0)
    following = ProducerCall(producer=P, number=5, previous=4)
    assert site.shard.admit(3, following) == (CallAdmission.ANSWERED, [refused])
    site.store(row)
    assert site.store(fence)[1:] == [Closed(2, 4)]
    assert site.shard.close(4, P) == [Closed(4, 4)]
    assert site.shard.admit(5, following)[1] == [Refused(request=5, reason=FENCED, last=4)]
    # What it stored before is still a repetition.
    assert site.shard.admit(6, ProducerCall(producer=P, number=4, previous=0))[1] == [CallStored(6)]


def test_questions_wait_for_a_barrier_published_after_them() -> None:
    site = OneSite().lead()
    (first,) = published(site.shard.ask(1))
    # The second question came after the first barrier was published, and needs its own.
    assert site.shard.ask(2) == []
    assert site.shard.ask(3) == []
    actions = site.store(first)
    assert others(actions)[1:] == [Confirmed(1, 3)]
    (second,) = published(actions)
    assert site.store(second)[1:] == [Confirmed(2, 4), Confirmed(3, 4)]


def test_fences_and_barriers_wait_for_room_and_for_admitted_calls() -> None:
    site = OneSite(window=1).lead()
    (row,) = site.call(1, 1, 0)
    assert site.shard.close(2, P) == []
    assert site.shard.ask(3) == []
    (fence,) = published(site.store(row))
    (barrier,) = published(site.store(fence))
    site.shard.admit(4, ProducerCall(producer=Q, number=1, previous=0))
    assert site.shard.ask(5) == []
    assert published(site.store(barrier)) == []
    actions = site.shard.withdraw()
    assert [type(action) for action in actions] == [Refused, PublishMessage]
