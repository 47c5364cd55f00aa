"""The steps from CONNECT to a session: negotiation, credentials, and the takeover of a connection.

A login ends with `welcome`, or with `end` and a reason. After a failure, the next password of the
same user and address waits before it is hashed, and its refusal is delayed again. Both delays grow
with each failure. A client whose password was verified before, or that needs no hash, does not
wait. After too many failures, all logins of the user from the address are refused for a while.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from siltstone.broker.access.access import Credentials, Identity
from siltstone.broker.broker import Broker
from siltstone.broker.connect.negotiate import agree
from siltstone.broker.connect.throttle import network_of
from siltstone.broker.sessions.entry import (
    EnteringClient,
    SessionEntry,
    is_stranger,
    is_turned_away,
)
from siltstone.broker.sessions.timers import Timer
from siltstone.guard import contain_with
from siltstone.logs import log
from siltstone.mqtt.packets import Connect
from siltstone.mqtt.reason import Reason

# Logins that may wait for a thread; further clients receive SERVER_BUSY.
_LOGINS_MAX: Final = 1000


class Login:
    """The login of one CONNECT."""

    __slots__ = (
        "_answer",
        "_broker",
        "_connect",
        "_credentials",
        "_identity",
        "_negotiated",
        "_timer",
        "_visitor",
    )

    def __init__(self, broker: Broker, visitor: EnteringClient, connect: Connect) -> None:
        self._broker = broker
        self._visitor = visitor
        self._connect = connect
        self._answer: Identity | Reason | None = None
        self._timer: Timer | None = None

    def begin(self, credentials_of: Callable[[str], Credentials]) -> str:
        """Start the login; return the address of the client."""
        broker = self._broker
        assigned_id = "" if self._connect.client_id else broker.assigned_id()
        negotiated = agree(self._connect, broker.limits, assigned_id)
        self._credentials = credentials_of(
            "" if isinstance(negotiated, Reason) else negotiated.client_id
        )
        if isinstance(negotiated, Reason):
            self._visitor.end(negotiated)
            return self._credentials.address
        self._negotiated = negotiated
        if is_turned_away(broker, self._visitor, negotiated.client_id):
            return self._credentials.address
        if self._is_locked_out():
            return self._credentials.address
        known = broker.access.trivial(self._credentials)
        if known is not None:
            self._judged(known)
        elif not broker.login_lanes.begin(self._lane, self._take_lane):
            self._visitor.end(
                Reason.SERVER_BUSY, "too many clients log in at the same time, try again"
            )
        return self._credentials.address

    @property
    def _lane(self) -> tuple[str, str]:
        return (self._credentials.username or "", network_of(self._credentials.address))

    def _is_locked_out(self) -> bool:
        """Refuse a user that has failed too often from this address; return whether it was."""
        shown = self._credentials
        if shown.certificate_user or shown.username is None:
            return False
        if not self._broker.throttle.is_locked(shown.username, shown.address):
            return False
        self._visitor.end(Reason.BANNED, "too many failed logins, try again later")
        return True

    def _take_lane(self) -> None:
        """Try the login when its turn comes, after the outcomes of earlier logins."""
        broker = self._broker
        if self._visitor.ended or self._is_locked_out():
            broker.login_lanes.end(self._lane)
            return
        known = broker.access.trivial(self._credentials)
        if known is not None:
            broker.login_lanes.end(self._lane)
            self._judged(known)
            return
        wait = broker.throttle.judge(self._credentials.username, self._credentials.address)
        if isinstance(wait, Reason):
            broker.login_lanes.end(self._lane)
            self._visitor.end(wait, "too many failed logins, try again later")
        else:
            self._later(wait, self._ask)

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        if seconds > 0:
            self._broker.timers.at(self._broker.shell.now() + seconds, act)
        else:
            act()

    def _ask(self) -> None:
        """Hash the password or call the hook, in a thread."""
        broker = self._broker
        access = broker.access
        if self._visitor.ended:
            broker.login_lanes.end(self._lane)
            return
        if broker.logins >= _LOGINS_MAX:
            broker.login_lanes.end(self._lane)
            self._visitor.end(
                Reason.SERVER_BUSY, "too many clients log in at the same time, try again"
            )
            return
        broker.logins += 1

        def work() -> None:
            if not self._visitor.ended:
                self._answer = access.authenticate(self._credentials)

        def then() -> None:
            broker.logins -= 1
            broker.login_lanes.end(self._lane)
            # Access catches the exceptions of a hook, which is user code, and refuses the login.
            answer = self._answer or Reason.SERVER_UNAVAILABLE
            contain_with(
                self._judged, answer, partial(self._visitor.end, Reason.SERVER_UNAVAILABLE)
            )

        broker.shell.in_thread(work, then)

    def _judged(self, answer: Identity | Reason) -> None:
        """Continue when the credentials are accepted or refused."""
        broker = self._broker
        user, address = self._credentials.username, self._credentials.address
        # SERVER_UNAVAILABLE is not a failure of the client. A wrong password counts even if the
        # client has disconnected meanwhile.
        if isinstance(answer, Reason) and answer is not Reason.SERVER_UNAVAILABLE:
            self._count_failure(answer)
        if self._visitor.ended:
            return
        if isinstance(answer, Reason):
            wait = broker.throttle.delay_for(user, address)
            self._later(wait, partial(self._visitor.end, answer))
            return
        broker.throttle.succeeded(user, address)
        will = self._connect.will
        if will is not None and not broker.access.may_publish(answer, will.topic):
            self._visitor.end(
                Reason.NOT_AUTHORIZED, "the will has a topic that this user may not publish to"
            )
            return
        self._enter(answer)

    def _count_failure(self, reason: Reason) -> None:
        broker = self._broker
        shown = self._credentials
        is_locked = broker.throttle.failed(shown.username, shown.address)
        facts: dict[str, object] = {"user": shown.username or "", "address": shown.address}
        broker.login_log.tell(
            logging.WARNING,
            "login_refused",
            {"client_id": shown.client_id, "reason": reason.name.lower(), **facts},
        )
        if is_locked:
            seconds = broker.settings.access.login_lockout
            log(broker.log, logging.WARNING, "user_locked_out", seconds=seconds, **facts)

    def _enter(self, identity: Identity) -> None:
        """Find or create the session of an accepted client."""
        self._identity = identity
        durables = self._broker.durables
        if durables is None:
            self._take_place()
        else:
            SessionEntry(
                self._broker, durables, self._visitor, self._connect, self._negotiated, identity
            ).begin()

    def _take_place(self) -> None:
        """Replace an earlier connection, once the outcome of its publishes is known."""
        broker = self._broker
        client_id = self._negotiated.client_id
        if broker.waiting.get(client_id) is self._visitor:
            del broker.waiting[client_id]
        # Other clients may have connected during the login, or during the wait.
        session = broker.registry.find(client_id)
        if (
            self._visitor.ended
            or is_turned_away(broker, self._visitor, client_id)
            or is_stranger(self._visitor, session, self._identity)
        ):
            return
        for other in (broker.clients.get(client_id), broker.waiting.get(client_id)):
            if other is not None:
                # [MQTT-3.1.4-3].
                other.end(Reason.SESSION_TAKEN_OVER)
                session = broker.registry.find(client_id)
        is_clean = self._connect.clean_start
        if session is not None and session.unsettled and not is_clean:
            # Messages of the previous connection are not on disk yet. Their outcome must be known
            # before the client sends them again.
            broker.waiting[client_id] = self._visitor
            session.when_settled.append(self._take_place)
            if self._timer is None:
                self._timer = broker.timers.at(
                    broker.shell.now() + broker.limits.connect_timeout,
                    partial(
                        self._visitor.end, Reason.SERVER_BUSY, "the session is busy, try again"
                    ),
                )
            return
        if session is not None and is_clean:
            # [MQTT-3.1.2-4].
            broker.registry.end(session)
            session = None
        if session is None and broker.registry.is_full:
            self._visitor.end(
                Reason.QUOTA_EXCEEDED, "too many sessions: limits.sessions_max is reached"
            )
            return
        broker.timers.cancel(self._timer)
        self._visitor.welcome(
            self._connect, self._negotiated, self._identity, session, is_present=session is not None
        )
