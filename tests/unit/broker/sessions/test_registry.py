from __future__ import annotations

from collections.abc import Callable
from typing import Any

from siltstone.broker.deliver.router import Router
from siltstone.broker.deliver.shares import ROUND_ROBIN, Subscriber
from siltstone.broker.publish.interest import Interest
from siltstone.broker.sessions.registry import Registry
from siltstone.broker.sessions.timers import Timers
from siltstone.broker.settings.broker import Limits
from siltstone.mqtt.packets import Subscription
from siltstone.session.sending.delivery import NEVER
from siltstone.session.sending.outbox import Ready
from siltstone.session.session import NO_EXPIRY, Session
from siltstone.session.subscribed import Subscribed
from siltstone.topic.grammar import TopicFilter
from tests.support.receiver import Receiver


class Desk:
    """A registry, and the sessions that ended."""

    def __init__(self, **limits: Any) -> None:
        self.router = Router()
        self.timers = Timers(lambda _: None)
        self.ended: list[Session] = []
        self.acts: list[Callable[[], None]] = []
        self.registry = Registry(
            Limits(**limits),
            self.router,
            Router(),
            Interest(is_asked=False),
            self.timers,
            Ready(lambda: None),
            soon=self.acts.append,
            ended=self.ended.append,
        )

    def session(self, client_id: str = "a", *, expiry_seconds: int = 0) -> Session:
        session = self.registry.create(client_id, "alice")
        session.expiry_seconds = expiry_seconds
        return session

    def subscribe(self, session: Session, text: str) -> None:
        topic_filter = TopicFilter.parse(text)
        subscriber = Subscriber(
            session.outbox,
            qos=1,
            no_local=False,
            keeps_retain=False,
            identifier=b"",
            guard=None,
        )
        session.subscriptions[text] = Subscribed(
            subscription=Subscription(filter=topic_filter, qos=1), identifier=0
        )
        self.registry.subscription_count += 1
        if topic_filter.group is None:
            self.router.subscribe(topic_filter.levels, subscriber)
        else:
            self.router.join(topic_filter.group, topic_filter.levels, subscriber, ROUND_ROBIN)


def test_a_session_is_found_by_its_client_id_with_what_it_was_made_of() -> None:
    desk = Desk()
    session = desk.session()
    assert (session.client_id, session.user, session.publisher) == ("a", "alice", b"a")
    assert (desk.registry.find("a"), desk.registry.find("b")) == (session, None)


def test_an_outbox_has_the_limits_of_the_settings_and_the_budget_of_all() -> None:
    desk = Desk(queued_messages_max=2, queued_bytes_total_max=1100, queue_policy="drop-new")
    one, other = desk.session("a").outbox, desk.session("b").outbox
    for payload in (b"1", b"2", b"3"):
        one.offer(b"t", payload, 1, b"", 0.0)
        other.offer(b"t", payload, 1, b"", 0.0)
    # Each message counts 252 bytes.
    assert (one.queued, one.dropped, other.queued, other.dropped) == (2, 1, 2, 1)
    assert desk.registry.budget.used == 4 * 252


def test_a_queue_may_give_up_the_oldest() -> None:
    desk = Desk(queued_messages_max=1, queue_policy="drop-old")
    outbox = desk.session().outbox
    outbox.offer(b"t", b"old", 1, b"", 0.0)
    outbox.offer(b"t", b"new", 1, b"", 0.0)
    assert (outbox.queued, outbox.dropped) == (1, 1)
    assert Receiver(outbox).payloads() == [b"new"]


def test_it_is_full_at_the_limit_and_no_more_when_a_session_ended() -> None:
    desk = Desk(sessions_max=2)
    full = [desk.registry.is_full]
    for client_id in ("a", "b"):
        desk.session(client_id)
        full.append(desk.registry.is_full)
    desk.registry.end(desk.registry.sessions["a"])
    full.append(desk.registry.is_full)
    assert full == [False, False, True, False]


def test_a_session_without_expiry_ends_with_its_connection() -> None:
    desk = Desk()
    session = desk.session(expiry_seconds=0)
    desk.registry.leave(session, 100.0)
    assert (desk.ended, desk.registry.sessions, len(desk.timers)) == ([session], {}, 0)


def test_mqtt_3_1_2_23_a_session_ends_when_its_interval_has_passed_and_never_before() -> None:
    desk = Desk()
    session = desk.session(expiry_seconds=10)
    desk.registry.leave(session, 100.0)
    desk.timers.run(109.9)
    assert (desk.ended, desk.registry.find("a")) == ([], session)
    desk.timers.run(110.0)
    assert (desk.ended, desk.registry.find("a"), len(desk.timers)) == ([session], None, 0)


def test_a_session_that_its_client_came_back_for_does_not_end() -> None:
    desk = Desk()
    session = desk.session(expiry_seconds=10)
    desk.registry.leave(session, 100.0)
    desk.registry.resume(session)
    assert len(desk.timers) == 0
    desk.timers.run(1000.0)
    assert (desk.ended, desk.registry.find("a")) == ([], session)


def test_a_session_that_never_expires_waits_without_a_timer() -> None:
    desk = Desk()
    session = desk.session(expiry_seconds=NO_EXPIRY)
    desk.registry.leave(session, 100.0)
    assert (desk.registry.find("a"), desk.ended, len(desk.timers)) == (session, [], 0)


def test_a_session_that_is_ended_while_it_waits_ends_once() -> None:
    desk = Desk()
    session = desk.session(expiry_seconds=10)
    desk.registry.leave(session, 100.0)
    desk.registry.end(session)
    assert (desk.ended, len(desk.timers)) == ([session], 0)
    again = desk.session()
    desk.timers.run(1000.0)
    assert (desk.ended, desk.registry.sessions) == ([session], {"a": again})


def test_with_a_session_end_its_subscriptions_and_what_waits_for_it() -> None:
    desk = Desk()
    session, other = desk.session("a"), desk.session("b")
    for text in ("x/+", "y", "$share/g/z"):
        desk.subscribe(session, text)
    desk.subscribe(other, "y")
    session.outbox.offer(b"y", b"waits", 1, b"", 0.0)
    other.outbox.offer(b"y", b"waits", 1, b"", 0.0)
    desk.registry.end(session)
    assert (session.subscriptions, session.outbox.queued) == ({}, 0)
    assert (desk.registry.sessions, desk.registry.subscription_count) == ({"b": other}, 1)
    assert (len(desk.router), desk.registry.budget.used) == (1, 256)


def test_one_subscription_is_taken_away_and_the_others_stay() -> None:
    desk = Desk()
    session, other = desk.session("a"), desk.session("b")
    for text in ("y", "$share/g/y"):
        desk.subscribe(session, text)
        desk.subscribe(other, text)
    desk.registry.drop_route(session, "$share/g/y")
    assert (list(session.subscriptions), list(other.subscriptions)) == (["y"], ["y", "$share/g/y"])
    assert (desk.registry.subscription_count, len(desk.router)) == (3, 3)
    desk.registry.drop_route(session, "y")
    assert (session.subscriptions, desk.registry.subscription_count) == ({}, 2)
    assert len(desk.router) == 2


def test_when_a_session_was_left_is_known_while_it_can_expire() -> None:
    desk = Desk()
    session, ever = (
        desk.session("a", expiry_seconds=60),
        desk.session("b", expiry_seconds=NO_EXPIRY),
    )
    assert desk.registry.left_at(session) is None
    for each in (session, ever):
        desk.registry.leave(each, 100.0)
    assert (desk.registry.left_at(session), desk.registry.left_at(ever)) == (100.0, None)
    desk.registry.resume(session)
    assert desk.registry.left_at(session) is None


def test_the_subscriptions_of_a_session_that_ends_go_some_in_each_turn() -> None:
    desk = Desk()
    session = desk.session()
    for number in range(1000):
        desk.subscribe(session, f"a/{number}")
    desk.subscribe(session, "$share/g/s")
    desk.registry.end(session)
    assert (desk.ended, len(desk.router)) == ([session], 1000 - 134)
    session.outbox.offer(b"a/999", b"x", 1, b"", NEVER)
    turns = 1
    while desk.acts:
        desk.acts.pop(0)()
        turns += 1
    assert (turns, len(desk.router), desk.registry.subscription_count) == (8, 0, 0)
    assert (session.outbox.queued, desk.registry.budget.used) == (0, 0)
