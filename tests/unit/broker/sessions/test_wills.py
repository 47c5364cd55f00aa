from __future__ import annotations

from siltstone.broker.sessions.timers import Timers
from siltstone.broker.sessions.wills import Wills
from siltstone.mqtt.packets import Will
from siltstone.mqtt.properties import Properties
from siltstone.session.session import Session
from tests.support.receiver import make_outbox


def will_of(delay: int | None) -> Will:
    return Will(topic=b"gone", payload=b"x", properties=Properties(will_delay_interval=delay))


class Desk:
    """Wills, and those that were published."""

    def __init__(self) -> None:
        self.timers = Timers(lambda _: None)
        self.published: list[tuple[str, Will]] = []
        self.wills = Wills(
            self.timers, lambda session, will: self.published.append((session.client_id, will))
        )

    def leave(self, client_id: str, will: Will, now: float) -> None:
        self.wills.leave(Session(client_id, "", make_outbox()), will, now)

    @property
    def waiting(self) -> tuple[int, int]:
        """How many wills wait, and how many timers for them."""
        return len(self.wills), len(self.timers)


def test_mqtt_3_1_2_8_a_will_without_delay_is_published_at_once() -> None:
    desk = Desk()
    desk.leave("a", will_of(None), 100.0)
    desk.leave("b", will_of(0), 100.0)
    assert desk.published == [("a", will_of(None)), ("b", will_of(0))]
    assert desk.waiting == (0, 0)


def test_a_will_with_a_delay_is_published_once_when_it_has_passed() -> None:
    desk = Desk()
    desk.leave("a", will_of(10), 100.0)
    desk.timers.run(109.9)
    assert (desk.published, desk.waiting) == ([], (1, 1))
    desk.timers.run(110.0)
    desk.timers.run(1000.0)
    assert (desk.published, desk.waiting) == ([("a", will_of(10))], (0, 0))


def test_mqtt_3_1_3_9_a_client_that_comes_back_in_time_takes_its_will_away() -> None:
    desk = Desk()
    desk.leave("a", will_of(10), 100.0)
    desk.leave("b", will_of(10), 100.0)
    desk.wills.cancel("a")
    desk.wills.cancel("a")
    assert desk.waiting == (1, 1)
    desk.timers.run(110.0)
    assert desk.published == [("b", will_of(10))]


def test_the_end_of_the_session_cuts_the_delay_short() -> None:
    desk = Desk()
    desk.leave("a", will_of(10), 100.0)
    desk.wills.fire("a")
    desk.wills.fire("a")
    assert (desk.published, desk.waiting) == ([("a", will_of(10))], (0, 0))
    desk.timers.run(110.0)
    assert desk.published == [("a", will_of(10))]


def test_without_a_will_there_is_nothing_to_take_away_or_to_publish() -> None:
    desk = Desk()
    desk.wills.cancel("a")
    desk.wills.fire("a")
    assert (desk.published, desk.waiting) == ([], (0, 0))


def test_a_will_that_waits_is_known_with_its_time() -> None:
    desk = Desk()
    will = will_of(30)
    desk.leave("a", will, 100.0)
    assert (desk.wills.waiting("a"), desk.wills.waiting("b")) == ((will, 130.0), None)
