from __future__ import annotations

from siltstone.client.outgoing import Publication
from siltstone.client.session import ClientSession, WantedSubscriptions
from siltstone.client.settings import ClientSettings
from siltstone.mqtt.packets import ConnAck, Subscribe, Subscription, Unsubscribe
from siltstone.mqtt.properties import Properties
from siltstone.mqtt.publish import PUBACK
from siltstone.mqtt.reason import Reason
from siltstone.topic.grammar import TopicFilter

SETTINGS = ClientSettings(client_id="c")
WANTED = (Subscription(filter=TopicFilter.parse("a/#"), qos=1),)
UNWANTED = (TopicFilter.parse("b"),)
BOTH = WantedSubscriptions(subscriptions=WANTED, unsubscriptions=UNWANTED)


def test_wishes_are_asked_for_with_ids_of_their_own() -> None:
    session = ClientSession(SETTINGS, BOTH, first_packet_id=9)
    assert session.begin(ConnAck()) == [
        Unsubscribe(packet_id=9, filters=UNWANTED),
        Subscribe(packet_id=10, subscriptions=WANTED),
    ]
    assert (session.met, len(session.ids)) == (True, 2)


def test_an_answered_request_frees_its_id() -> None:
    session = ClientSession(SETTINGS, WantedSubscriptions(subscriptions=WANTED))
    [request] = session.begin(ConnAck())
    assert session.answered(7) is None
    assert session.answered(1) == request
    assert (session.answered(1), len(session.ids)) == (None, 0)


def test_a_lost_connection_frees_the_ids_of_its_requests() -> None:
    session = ClientSession(SETTINGS, WantedSubscriptions(subscriptions=WANTED))
    session.begin(ConnAck())
    [again] = session.begin(ConnAck())
    assert (again.packet_id, len(session.ids)) == (2, 1)


def test_a_kept_session_is_not_subscribed_again_and_a_lost_one_is() -> None:
    session = ClientSession(SETTINGS, WantedSubscriptions(subscriptions=WANTED))
    session.begin(ConnAck())
    session.subscribed = True
    assert session.begin(ConnAck(session_present=True)) == []
    assert len(session.begin(ConnAck())) == 1
    # Not granted since.
    assert len(session.begin(ConnAck(session_present=True))) == 1


def test_a_session_of_an_earlier_run_is_subscribed_to_what_this_one_wants() -> None:
    session = ClientSession(SETTINGS, WantedSubscriptions(subscriptions=WANTED))
    assert len(session.begin(ConnAck(session_present=True))) == 1


def test_an_id_that_the_server_assigned_stays() -> None:
    session = ClientSession(ClientSettings(client_id=""))
    session.begin(ConnAck(properties=Properties(assigned_client_identifier="s1")))
    session.begin(ConnAck())
    assert session.client_id == "s1"


def test_it_is_over_when_everything_is_answered() -> None:
    session = ClientSession(SETTINGS, WantedSubscriptions(unsubscriptions=UNWANTED))
    session.begin(ConnAck())
    session.outgoing.add(Publication(topic=b"t", qos=1), [b"x"])
    session.outgoing.take()
    session.finish()
    assert session.over is False
    session.outgoing.receive(PUBACK, [2])
    assert session.over is False
    session.answered(1)
    assert session.over is True


def test_nothing_to_do_is_no_end_before_finish() -> None:
    session = ClientSession(SETTINGS)
    session.begin(ConnAck())
    assert session.over is False
    session.leave()
    assert (session.over, session.leaving) == (True, True)


def test_a_refused_message_ends_it_once_the_others_are_answered() -> None:
    session = ClientSession(SETTINGS)
    session.begin(ConnAck())
    session.outgoing.add(Publication(topic=b"t", qos=1), [b"1", b"2"])
    session.outgoing.take()
    session.outgoing.refuse(1, Reason.QUOTA_EXCEEDED)
    assert session.over is False
    session.outgoing.receive(PUBACK, [2])
    assert session.over is True
