from __future__ import annotations

from pathlib import PurePath

from siltstone.broker.sessions.timers import Timers
from siltstone.broker.sessions.wills import Wills
from siltstone.errors import SiltstoneError
from siltstone.fs.memory import MemoryFileSystem
from siltstone.mqtt.packets import Will
from siltstone.mqtt.properties import Properties
from siltstone.session.sending.delivery import Spilled
from siltstone.session.session import Session
from tests.support.receiver import make_outbox


def will_of(delay: int | None) -> Will:
    return Will(topic=b"gone", payload=b"x", properties=Properties(will_delay_interval=delay))


class Desk:
    """Wills, those that were published, and those that were lost."""

    def __init__(self) -> None:
        self.timers = Timers(lambda _: None)
        self.published: list[tuple[str, Will]] = []
        self.lost: list[tuple[str, Will, str]] = []
        self.wills = Wills(self.timers, self.publish, self.lose)

    def publish(self, session: Session, will: Will) -> None:
        self.published.append((session.client_id, will))

    def lose(self, session: Session, will: Will, error: SiltstoneError) -> None:
        self.lost.append((session.client_id, will, str(error)))

    def leave(self, client_id: str, will: Will, now: float, spilled: Spilled | None = None) -> None:
        self.wills.leave(Session(client_id, "", make_outbox()), will, now, spilled)

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
    assert (desk.wills.waiting("a"), desk.wills.waiting("b")) == ((will, None, 130.0), None)


def test_a_will_whose_payload_cannot_be_read_is_lost_and_the_others_are_published() -> None:
    desk = Desk()
    short = Spilled(MemoryFileSystem().create(PurePath("/payloads")), 0, 4)
    desk.leave("a", will_of(0), 100.0, short)
    desk.leave("b", will_of(10), 100.0, short)
    desk.leave("c", will_of(20), 100.0, short)
    desk.leave("d", will_of(10), 100.0)
    # Where its payload is, is known without reading it.
    assert desk.wills.waiting("b") == (will_of(10), short, 110.0)
    desk.timers.run(110.0)
    desk.wills.fire("c")
    assert [client_id for client_id, _ in desk.published] == ["d"]
    why = "the file ends before the payload does: path=/payloads offset=0"
    assert desk.lost == [("a", will_of(0), why), ("b", will_of(10), why), ("c", will_of(20), why)]
    assert desk.waiting == (0, 0)
