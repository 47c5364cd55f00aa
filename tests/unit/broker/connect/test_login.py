from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from siltstone.broker.access.access import Access, Credentials, Hook, Identity
from siltstone.broker.connect.login import Login
from siltstone.broker.connect.negotiate import Negotiated, agree
from siltstone.broker.settings.broker import Limits
from siltstone.mqtt.packets import Connect, Disconnect, Will
from siltstone.mqtt.properties import Properties
from siltstone.mqtt.reason import Reason
from siltstone.session.session import Session
from tests.support.broker_core import V5, Core, Wire

ADDRESS = "10.0.0.1"
WRONG = Reason.BAD_USER_NAME_OR_PASSWORD
IN_USE = (Reason.CLIENT_IDENTIFIER_NOT_VALID, "the client id is in use by another user")
BUSY = (Reason.SERVER_BUSY, "too many clients are connected: limits.connections_max is reached")
TAKEN_OVER = (Reason.SESSION_TAKEN_OVER, "")


class Door:
    """A hook that knows one password for everybody, and breaks when it is told a certain one."""

    def __init__(self) -> None:
        self.asked: list[bytes | None] = []

    def authenticate(self, credentials: Credentials) -> bool:
        self.asked.append(credentials.password)
        if credentials.password == b"break":
            raise RuntimeError("on purpose")
        return credentials.password == b"right"


class NoWills:
    """A hook that lets nobody publish to one topic."""

    def authorize(self, identity: Identity, action: str, topic: str) -> bool:
        return (identity.client_id, action, topic) != ("a", "publish", "forbidden")


def guarded(door: Door) -> Access:
    return Access(None, None, Hook(door))


class Guest:
    """A visitor of a broker, and what was said to it."""

    def __init__(self, core: Core, connect: Connect, *, anonymous_allowed: bool = True) -> None:
        self.core = core
        self.connect = connect
        self.anonymous_allowed = anonymous_allowed
        self.ended = False
        self.ends: list[tuple[Reason, str]] = []
        self.welcomes: list[tuple[Connect, Negotiated, Identity, Session | None]] = []
        self.credentials_for: list[str] = []

    @property
    def is_in(self) -> bool:
        return bool(self.welcomes)

    def begin(self) -> str:
        return Login(self.core.broker, self, self.connect).begin(self.credentials)

    def credentials(self, client_id: str) -> Credentials:
        self.credentials_for.append(client_id)
        return Credentials(
            client_id=client_id,
            username=self.connect.username,
            password=self.connect.password,
            certificate_user=None,
            address=ADDRESS,
            listener="desk",
            anonymous_allowed=self.anonymous_allowed,
        )

    def end(self, reason: Reason, text: str = "") -> None:
        self.ended = True
        self.ends.append((reason, text))

    def stop(self) -> None:
        raise AssertionError("nobody lets a guest wait")

    def go_on(self) -> None:
        raise AssertionError("nobody lets a guest wait")

    def welcome(
        self,
        connect: Connect,
        terms: Negotiated,
        identity: Identity,
        session: Session | None,
        *,
        is_present: bool,
    ) -> None:
        assert is_present == (session is not None)
        assert self.core.broker.registry.find(terms.client_id) is session
        self.welcomes.append((connect, terms, identity, session))
        if session is None:
            self.core.broker.registry.create(terms.client_id, identity.user)
        self.core.broker.clients[terms.client_id] = self

    @property
    def sessions(self) -> list[Session | None]:
        """The sessions that it was let into."""
        return [session for _, _, _, session in self.welcomes]


def come(
    core: Core,
    client_id: str,
    password: bytes | None = None,
    *,
    username: str | None = "u",
    anonymous_allowed: bool = True,
    clean_start: bool = True,
    will: Will | None = None,
    **properties: Any,
) -> Guest:
    """Let a guest send CONNECT."""
    connect = Connect(
        version=V5,
        client_id=client_id,
        username=username,
        password=password,
        clean_start=clean_start,
        will=will,
        properties=Properties(**properties),
    )
    guest = Guest(core, connect, anonymous_allowed=anonymous_allowed)
    assert guest.begin() == ADDRESS
    return guest


def connected(core: Core, client_id: str, *, username: str = "u") -> Wire:
    """Connect a client whose session outlives its connection."""
    wire = core.wire()
    fields: dict[str, Any] = {"username": username, "password": b"right"}
    wire.connect(client_id, session_expiry_interval=100, **fields)
    core.shell.finish_works()
    wire.take()
    assert wire.accepted is not None
    return wire


def unsettled(core: Core, client_id: str = "a") -> Session:
    """Leave a session whose publish is on its way to the disk."""
    wire = connected(core, client_id)
    wire.publish("t", qos=1, packet_id=1)
    wire.drop()
    session = core.broker.registry.sessions[client_id]
    assert session.unsettled == 1
    return session


def test_who_needs_no_hash_is_let_in_at_once_with_its_terms_and_name() -> None:
    core = Core()
    guest = come(core, "a")
    terms = agree(guest.connect, Limits(), "")
    assert isinstance(terms, Negotiated)
    assert guest.welcomes == [
        (guest.connect, terms, Identity(user="", client_id="a"), None),
    ]
    assert (guest.ends, guest.credentials_for) == ([], ["a"])


def test_who_brings_no_client_id_is_asked_for_credentials_under_the_assigned_one() -> None:
    guest = come(Core(), "")
    ((_, terms, identity, _),) = guest.welcomes
    assert terms.client_id.startswith("auto-")
    assert (guest.credentials_for, identity.client_id) == ([terms.client_id], terms.client_id)


def test_who_cannot_agree_on_terms_is_refused_unseen() -> None:
    door = Door()
    core = Core(access=guarded(door))
    guest = come(core, "a", b"right", authentication_method="unknown")
    assert (guest.ends, guest.welcomes) == ([(Reason.BAD_AUTHENTICATION_METHOD, "")], [])
    assert (guest.credentials_for, list(core.shell.works)) == ([""], [])


def test_who_comes_when_all_places_are_taken_is_told_before_anything_is_hashed() -> None:
    core = Core(access=guarded(Door()), connections_max=1)
    connected(core, "a")
    guest = come(core, "b", b"right")
    assert (guest.ends, guest.welcomes, list(core.shell.works)) == ([BUSY], [], [])


def test_a_client_may_take_its_own_place_when_all_are_taken() -> None:
    core = Core(connections_max=1)
    wire = connected(core, "a")
    session = core.broker.registry.find("a")
    guest = come(core, "a", clean_start=False)
    assert (guest.ends, guest.sessions) == ([], [session])
    assert wire.take() == [Disconnect(reason=Reason.SESSION_TAKEN_OVER)]
    assert core.broker.clients == {"a": guest}


def test_of_those_who_are_judged_at_once_no_more_get_in_than_there_are_places() -> None:
    core = Core(access=guarded(Door()), connections_max=1)
    first, second = come(core, "a", b"right"), come(core, "b", b"right")
    core.shell.finish_works()
    assert (first.sessions, second.sessions) == ([None], [])
    assert (first.ends, second.ends) == ([], [BUSY])


def test_a_thread_answers_where_a_hook_must_be_asked() -> None:
    door = Door()
    core = Core(access=guarded(door))
    guest = come(core, "a", b"right")
    assert (guest.welcomes, door.asked, len(core.shell.works)) == ([], [], 1)
    core.shell.finish_works()
    assert [identity for _, _, identity, _ in guest.welcomes] == [Identity(user="u", client_id="a")]
    assert (guest.ends, door.asked) == ([], [b"right"])


def test_a_wrong_password_is_refused_after_a_wait() -> None:
    core = Core(access=guarded(Door()))
    guest = come(core, "a", b"wrong")
    core.shell.finish_works()
    core.advance(0.9)
    assert guest.ends == []
    core.advance(0.1)
    assert (guest.ends, guest.welcomes) == ([(WRONG, "")], [])


def test_after_failures_a_guess_waits_before_it_is_hashed_and_its_refusal_waits_longer() -> None:
    door = Door()
    core = Core(access=guarded(door))
    core.broker.throttle.failed("u", ADDRESS)
    guest = come(core, "a", b"wrong")
    core.advance(0.9)
    core.shell.finish_works()
    assert door.asked == []
    core.advance(0.1)
    core.shell.finish_works()
    assert (door.asked, guest.ends) == ([b"wrong"], [])
    core.advance(1.9)
    assert guest.ends == []
    core.advance(0.1)
    assert guest.ends == [(WRONG, "")]


def test_who_gets_in_has_the_failures_of_its_address_forgotten() -> None:
    core = Core(access=guarded(Door()))
    core.broker.throttle.failed("u", ADDRESS)
    guest = come(core, "a", b"right")
    core.advance(1.0)
    core.shell.finish_works()
    assert (guest.sessions, core.broker.throttle.delay_for("u", ADDRESS)) == ([None], 0.0)


def test_who_needs_no_hash_does_not_wait_for_the_failures_of_others() -> None:
    core = Core()
    core.broker.throttle.failed("u", ADDRESS)
    assert come(core, "a").sessions == [None]


def test_a_refusal_without_a_hash_is_counted_and_waits_too() -> None:
    core = Core()
    guest = come(core, "a", username=None, anonymous_allowed=False)
    assert (guest.ends, core.broker.throttle.delay_for(None, ADDRESS)) == ([], 1.0)
    core.advance(1.0)
    assert (guest.ends, guest.welcomes) == ([(Reason.NOT_AUTHORIZED, "")], [])


def test_a_server_that_cannot_decide_says_so_at_once_and_counts_no_failure() -> None:
    core = Core(access=guarded(Door()))
    guest = come(core, "a", b"break")
    core.shell.finish_works()
    assert guest.ends == [(Reason.SERVER_UNAVAILABLE, "")]
    assert core.broker.throttle.delay_for("u", ADDRESS) == 0.0


def test_a_thread_that_gave_no_answer_means_no() -> None:
    core = Core(access=guarded(Door()))
    guest = come(core, "a", b"right")
    _, then = core.shell.works.popleft()
    then()
    assert (guest.ends, guest.welcomes) == ([(Reason.SERVER_UNAVAILABLE, "")], [])


def test_a_guest_that_has_gone_before_it_is_hashed_costs_no_hash() -> None:
    core = Core(access=guarded(Door()))
    core.broker.throttle.failed("u", ADDRESS)
    guest = come(core, "a", b"right")
    guest.ended = True
    core.advance(1.0)
    assert (list(core.shell.works), guest.ends, guest.welcomes) == ([], [], [])


@pytest.mark.parametrize("password", [b"right", b"wrong"])
def test_a_guest_that_has_gone_before_a_thread_is_free_costs_no_hash_and_is_not_counted(
    password: bytes,
) -> None:
    door = Door()
    core = Core(access=guarded(door))
    guest = come(core, "a", password)
    guest.ended = True
    core.shell.finish_works()
    assert (guest.ends, guest.welcomes, door.asked) == ([], [], [])
    assert (core.broker.throttle.delay_for("u", ADDRESS), core.broker.logins) == (0.0, 0)


@pytest.mark.parametrize(("password", "delay"), [(b"right", 0.0), (b"wrong", 1.0)])
def test_a_guest_that_has_gone_before_the_answer_is_not_let_in_but_a_wrong_guess_is_counted(
    password: bytes, delay: float
) -> None:
    core = Core(access=guarded(Door()))
    guest = come(core, "a", password)
    work, then = core.shell.works.popleft()
    work()
    guest.ended = True
    then()
    core.advance(10.0)
    assert (guest.ends, guest.welcomes) == ([], [])
    assert core.broker.throttle.delay_for("u", ADDRESS) == delay


def test_many_guesses_at_once_try_no_more_than_a_few_before_the_lockout() -> None:
    door = Door()
    core = Core(access=guarded(door))
    guests: list[Guest] = []
    for wave in range(60):
        guests += [come(core, f"{wave}-{number}", b"wrong") for number in range(30)]
        core.shell.finish_works()
        core.advance(1.0)
    for _ in range(2):
        core.advance(core.broker.settings.access.login_delay_max)
        core.shell.finish_works()
    # Four are tried before the first failure is known, the others one by one.
    assert len(door.asked) <= core.broker.settings.access.login_failures_max + 4
    ends = [guest.ends[0][0] for guest in guests]
    assert ends.count(WRONG) == len(door.asked)
    assert set(ends) == {WRONG, Reason.SERVER_BUSY, Reason.BANNED}
    # The right one is refused too, but not that of others.
    assert come(core, "right", b"right").ends == [
        (Reason.BANNED, "too many failed logins, try again later")
    ]
    other = come(core, "other", b"right", username="v")
    core.shell.finish_works()
    core.advance(1.0)
    core.shell.finish_works()
    assert other.sessions == [None]
    core.advance(core.broker.settings.access.login_lockout)
    late = come(core, "late", b"right")
    core.shell.finish_works()
    assert late.sessions == [None]


def test_refused_logins_are_warned_of_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    core = Core(access=guarded(Door()))
    for number in range(12):
        come(core, f"g{number}", b"wrong")
        core.shell.finish_works()
        core.advance(20.0)
    told = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert [record.message for record in told] == ["login_refused"] * 10 + ["user_locked_out"]
    assert getattr(told[0], "facts", {}) == {
        "client_id": "g0",
        "reason": "bad_user_name_or_password",
        "user": "u",
        "address": ADDRESS,
    }


def test_a_will_that_may_not_be_published_keeps_its_client_out() -> None:
    core = Core(access=Access(None, None, Hook(NoWills())))
    guest = come(core, "a", will=Will(topic=b"forbidden", payload=b""))
    assert guest.ends == [
        (Reason.NOT_AUTHORIZED, "the will has a topic that this user may not publish to")
    ]
    assert guest.welcomes == []


def test_a_will_that_may_be_published_does_not() -> None:
    core = Core(access=Access(None, None, Hook(NoWills())))
    assert come(core, "a", will=Will(topic=b"allowed", payload=b"")).sessions == [None]


def test_mqtt_3_1_2_5_who_comes_back_finds_its_session() -> None:
    core = Core()
    connected(core, "a").drop()
    session = core.broker.registry.find("a")
    assert come(core, "a", clean_start=False).sessions == [session]
    assert core.broker.registry.sessions == {"a": session}


def test_mqtt_3_1_2_4_a_clean_start_ends_the_session_that_there_is() -> None:
    core = Core()
    connected(core, "a").drop()
    before = core.broker.registry.find("a")
    assert come(core, "a").sessions == [None]
    assert core.broker.registry.sessions["a"] is not before


def test_mqtt_3_1_4_3_a_session_that_ends_with_its_connection_is_not_taken_over() -> None:
    core = Core()
    wire = core.connect("a")
    guest = come(core, "a", clean_start=False)
    assert (guest.sessions, guest.ends) == ([None], [])
    assert wire.take() == [Disconnect(reason=Reason.SESSION_TAKEN_OVER)]


def test_a_stranger_is_refused_the_client_id_of_another_user_who_is_connected() -> None:
    core = Core(access=guarded(Door()))
    wire = connected(core, "a", username="alice")
    guest = come(core, "a", b"right", username="mallory")
    core.shell.finish_works()
    assert (guest.ends, guest.welcomes) == ([IN_USE], [])
    assert (wire.take(), wire.is_closed) == ([], False)
    assert core.broker.clients == {"a": wire.client}


def test_a_stranger_neither_ends_nor_inherits_the_session_of_who_is_away() -> None:
    core = Core(access=guarded(Door()))
    connected(core, "a", username="alice").drop()
    guest = come(core, "a", b"right", username="mallory", clean_start=False)
    core.shell.finish_works()
    refusal = (Reason.CLIENT_IDENTIFIER_NOT_VALID, "the client id is in use by another user")
    assert (guest.sessions, guest.ends) == ([], [refusal])
    assert [each.user for each in core.broker.registry.sessions.values()] == ["alice"]


def test_no_session_begins_when_there_are_too_many_but_one_may_be_resumed() -> None:
    core = Core(sessions_max=1)
    connected(core, "a").drop()
    session = core.broker.registry.find("a")
    other = come(core, "b")
    assert other.ends == [
        (Reason.QUOTA_EXCEEDED, "too many sessions: limits.sessions_max is reached")
    ]
    assert come(core, "a", clean_start=False).sessions == [session]


def test_a_session_whose_publishes_have_no_outcome_yet_is_waited_for() -> None:
    core = Core(automatic=False)
    session = unsettled(core)
    guest = come(core, "a", clean_start=False)
    assert (guest.welcomes, core.broker.waiting) == ([], {"a": guest})
    core.settle()
    assert (guest.sessions, guest.ends, core.broker.waiting) == ([session], [], {})


def test_who_waits_gives_way_to_who_comes_later() -> None:
    core = Core(automatic=False)
    session = unsettled(core)
    first = come(core, "a", clean_start=False)
    second = come(core, "a", clean_start=False)
    assert (first.ends, core.broker.waiting) == ([TAKEN_OVER], {"a": second})
    core.settle()
    assert (first.sessions, second.sessions, core.broker.waiting) == ([], [session], {})


def test_a_clean_start_waits_for_nothing_and_ends_who_does() -> None:
    core = Core(automatic=False)
    unsettled(core)
    first = come(core, "a", clean_start=False)
    second = come(core, "a")
    assert (first.ends, second.sessions) == ([TAKEN_OVER], [None])
    core.settle()
    assert (first.welcomes, second.sessions, core.broker.waiting) == ([], [None], {})


def test_a_stranger_is_refused_the_client_id_of_another_user_who_waits() -> None:
    core = Core(access=guarded(Door()), automatic=False)
    session = unsettled(core)
    owner = come(core, "a", b"right", clean_start=False)
    core.shell.finish_works()
    stranger = come(core, "a", b"right", username="mallory")
    core.shell.finish_works()
    assert (stranger.ends, owner.ends) == ([IN_USE], [])
    core.settle()
    assert (owner.sessions, stranger.sessions) == ([session], [])


def gone(guest: Guest) -> None:
    guest.ended = True


def expired(guest: Guest) -> None:
    guest.core.advance(100.0)


def test_who_waits_for_an_outcome_too_long_is_told_and_does_not_get_in_later() -> None:
    core = Core(automatic=False)
    unsettled(core)
    guest = come(core, "a", clean_start=False)
    core.advance(9.9)
    assert guest.ends == []
    core.advance(0.1)
    assert guest.ends == [(Reason.SERVER_BUSY, "the session is busy, try again")]
    core.settle()
    assert (guest.sessions, core.broker.waiting) == ([], {})


def test_who_got_in_after_a_wait_is_not_put_out() -> None:
    core = Core(automatic=False)
    session = unsettled(core)
    guest = come(core, "a", clean_start=False)
    core.settle()
    core.advance(20)
    assert (guest.sessions, guest.ends) == ([session], [])


@pytest.mark.parametrize(
    ("happens", "sessions"),
    [(gone, []), (expired, [None])],
    ids=["the guest goes", "the session expires"],
)
def test_much_may_happen_while_an_outcome_is_waited_for(
    happens: Callable[[Guest], None], sessions: list[Session | None]
) -> None:
    core = Core(automatic=False, connect_timeout=200.0)
    unsettled(core)
    guest = come(core, "a", clean_start=False)
    happens(guest)
    core.settle()
    assert (guest.sessions, guest.ends, core.broker.waiting) == (sessions, [], {})


def test_so_many_logins_may_wait_for_a_thread_and_each_that_ends_makes_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("siltstone.broker.connect.login._LOGINS_MAX", 2)
    core = Core(access=guarded(Door()))
    guests = [come(core, client_id, b"right") for client_id in "abc"]
    too_many = (Reason.SERVER_BUSY, "too many clients log in at the same time, try again")
    assert [guest.ends for guest in guests] == [[], [], [too_many]]
    assert (len(core.shell.works), core.broker.logins) == (2, 2)
    guests[0].ended = True
    work, then = core.shell.works.popleft()
    work()
    then()
    guests += [come(core, client_id, b"right") for client_id in "de"]
    core.shell.finish_works()
    assert [guest.sessions for guest in guests] == [[], [None], [], [None], []]
    assert [guest.ends for guest in guests] == [[], [], [too_many], [], [too_many]]
    assert core.broker.logins == 0
