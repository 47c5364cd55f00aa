from __future__ import annotations

from siltstone.client.incoming import Incoming
from siltstone.mqtt.publish import PUBACK, PUBCOMP, PUBREC, PublishBatch, encode_acks


def batch(*rows: tuple[int, int]) -> PublishBatch:
    """Return messages by flags and packet id; the payload is the number of the row."""
    made = PublishBatch()
    for number, (flags, packet_id) in enumerate(rows):
        made.topics.append(b"t/%d" % number)
        made.values.append(b"%d" % number)
        made.flags.append(flags)
        made.packet_ids.append(packet_id)
    return made


def accepted(incoming: Incoming, made: PublishBatch) -> list[bytes]:
    fresh = incoming.fresh(made)
    incoming.accept(fresh, len(fresh.topics))
    return fresh.values


def test_each_qos_has_its_answer_and_qos_0_none() -> None:
    incoming = Incoming()
    assert accepted(incoming, batch((0, 0), (1, 5), (2, 6), (1, 7))) == [b"0", b"1", b"2", b"3"]
    assert incoming.take() == encode_acks(PUBACK, [5, 7], 0) + encode_acks(PUBREC, [6], 0)
    assert incoming.take() == b""


def test_messages_that_were_not_accepted_are_not_answered() -> None:
    incoming = Incoming()
    fresh = incoming.fresh(batch((1, 5), (2, 6), (1, 7)))
    incoming.accept(fresh, 1)
    assert incoming.take() == encode_acks(PUBACK, [5], 0)
    # The one of QoS 2 was never received: it is new when it comes again.
    assert accepted(incoming, batch((10, 6))) == [b"0"]


def test_a_repeated_message_of_qos_2_is_answered_and_not_handed_over() -> None:
    incoming = Incoming()
    accepted(incoming, batch((2, 6)))
    incoming.take()
    assert accepted(incoming, batch((2, 5), (10, 6), (2, 7))) == [b"0", b"2"]
    assert incoming.take() == encode_acks(PUBREC, [6, 5, 7], 0)


def test_a_message_of_qos_2_that_stands_twice_in_one_batch_is_handed_over_once() -> None:
    incoming = Incoming()
    assert accepted(incoming, batch((2, 6), (10, 6))) == [b"0"]
    assert incoming.take() == encode_acks(PUBREC, [6], 0)


def test_a_repeated_message_of_qos_1_is_handed_over_again() -> None:
    incoming = Incoming()
    accepted(incoming, batch((1, 5)))
    assert accepted(incoming, batch((9, 5))) == [b"0"]


def test_an_id_that_was_released_stands_for_a_new_message() -> None:
    incoming = Incoming()
    accepted(incoming, batch((2, 6)))
    incoming.take()
    incoming.release([6])
    assert incoming.take() == encode_acks(PUBCOMP, [6], 0)
    assert accepted(incoming, batch((2, 6))) == [b"0"]


def test_a_release_of_nothing_known_is_answered() -> None:
    incoming = Incoming()
    incoming.release([9])
    assert incoming.take() == encode_acks(PUBCOMP, [9], 0)


def test_a_kept_session_remembers_what_was_accepted_and_a_new_one_does_not() -> None:
    incoming = Incoming()
    accepted(incoming, batch((2, 6)))
    incoming.begin(session_present=True)
    # The answer was for the connection that was lost; the server asks again.
    assert incoming.take() == b""
    assert accepted(incoming, batch((10, 6))) == []
    incoming.begin(session_present=False)
    assert accepted(incoming, batch((2, 6))) == [b"0"]


def test_deferred_messages_are_answered_when_they_are_kept() -> None:
    incoming = Incoming()
    deferred = incoming.defer(incoming.fresh(batch((0, 0), (1, 5), (2, 6))))
    assert incoming.take() == b""
    incoming.settle(deferred)
    assert incoming.take() == encode_acks(PUBACK, [5], 0) + encode_acks(PUBREC, [6], 0)
    assert accepted(incoming, batch((10, 6))) == []


def test_what_is_sent_again_while_it_is_being_kept_is_handed_over_once_with_qos_2() -> None:
    incoming = Incoming()
    deferred = incoming.defer(incoming.fresh(batch((1, 5), (2, 6))))
    incoming.begin(session_present=True)
    again = incoming.fresh(batch((9, 5), (10, 6)))
    assert again.packet_ids == [5]
    incoming.settle(deferred)
    assert incoming.take() == encode_acks(PUBREC, [6], 0)
    incoming.settle(incoming.defer(again))
    assert incoming.take() == encode_acks(PUBACK, [5], 0)


def test_a_session_that_the_server_lost_is_owed_no_answers() -> None:
    incoming = Incoming()
    deferred = incoming.defer(incoming.fresh(batch((1, 5), (2, 6))))
    incoming.begin(session_present=False)
    incoming.settle(deferred)
    assert incoming.take() == b""
    assert accepted(incoming, batch((2, 6))) == [b"0"]


def test_what_could_not_be_kept_is_new_when_it_comes_again() -> None:
    incoming = Incoming()
    incoming.give_up(incoming.defer(incoming.fresh(batch((2, 6)))))
    incoming.begin(session_present=True)
    assert accepted(incoming, batch((10, 6))) == [b"0"]
