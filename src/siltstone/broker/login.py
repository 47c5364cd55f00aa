"""From CONNECT to a session: terms, credentials, the connection that is taken over, the wait.

It ends in `welcome`, or in `end` with a reason. A guess of a password waits before it is hashed,
and its refusal waits again, longer with each failure from an address; whoever shows what was
verified before, or needs no hash, does not wait.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from siltstone.broker.access import Credentials, Identity
from siltstone.broker.broker import Broker
from siltstone.broker.entry import Entry, Visitor, is_stranger, is_turned_away
from siltstone.broker.terms import agree
from siltstone.mqtt.packets import Connect
from siltstone.mqtt.reason import Reason

# So many hashes may wait for a thread; who comes then is asked to come back.
_LOGINS_MAX: Final = 1000


class Login:
    """One CONNECT on its way."""

    __slots__ = (
        "_answer",
        "_broker",
        "_connect",
        "_credentials",
        "_identity",
        "_terms",
        "_visitor",
    )

    def __init__(self, broker: Broker, visitor: Visitor, connect: Connect) -> None:
        self._broker = broker
        self._visitor = visitor
        self._connect = connect
        self._answer: Identity | Reason | None = None

    def begin(self, credentials_of: Callable[[str], Credentials]) -> str:
        """Judge the CONNECT; return the address that it came from."""
        broker = self._broker
        terms = agree(self._connect, broker.limits, broker.assigned_id())
        self._credentials = credentials_of("" if isinstance(terms, Reason) else terms.client_id)
        if isinstance(terms, Reason):
            self._visitor.end(terms)
            return self._credentials.address
        self._terms = terms
        if is_turned_away(broker, self._visitor, terms.client_id):
            return self._credentials.address
        known = broker.access.trivial(self._credentials)
        if known is not None:
            self._judged(known)
        else:
            self._later(broker.throttle.delay_for(self._credentials.address), self._ask)
        return self._credentials.address

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        if seconds > 0:
            self._broker.timers.at(self._broker.shell.now() + seconds, act)
        else:
            act()

    def _ask(self) -> None:
        """Let a thread hash the password, or call the hook."""
        if self._visitor.ended:
            return
        broker = self._broker
        access = broker.access
        if broker.logins >= _LOGINS_MAX:
            self._visitor.end(Reason.SERVER_BUSY, "too many clients log in at once")
            return
        broker.logins += 1

        def work() -> None:
            if not self._visitor.ended:
                self._answer = access.authenticate(self._credentials)

        def then() -> None:
            broker.logins -= 1
            # A hook is others' code: what it raises is caught by Access, and means no.
            self._judged(self._answer or Reason.SERVER_UNAVAILABLE)

        broker.shell.in_thread(work, then)

    def _judged(self, answer: Identity | Reason) -> None:
        """Go on when it is known who the client is."""
        broker = self._broker
        address = self._credentials.address
        # A server that cannot decide is not the client's fault; to be gone by now is no excuse.
        if isinstance(answer, Reason) and answer is not Reason.SERVER_UNAVAILABLE:
            broker.throttle.failed(address)
        if self._visitor.ended:
            return
        if isinstance(answer, Reason):
            self._later(broker.throttle.delay_for(address), partial(self._visitor.end, answer))
            return
        broker.throttle.succeeded(address)
        will = self._connect.will
        if will is not None and not broker.access.may_publish(answer, will.topic):
            self._visitor.end(Reason.NOT_AUTHORIZED, "the will may not be published")
            return
        self._enter(answer)

    def _enter(self, identity: Identity) -> None:
        """Take a place."""
        self._identity = identity
        durables = self._broker.durables
        if durables is None:
            self._take_place()
        else:
            Entry(
                self._broker, durables, self._visitor, self._connect, self._terms, identity
            ).begin()

    def _take_place(self) -> None:
        """Take the place of an earlier connection, when what that one sent has its outcome."""
        broker = self._broker
        client_id = self._terms.client_id
        if broker.waiting.get(client_id) is self._visitor:
            del broker.waiting[client_id]
        # Others may have come in while this one was judged, or waited.
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
            # Messages of the connection before are on their way to the disk: what the client sends
            # again must find their outcome.
            broker.waiting[client_id] = self._visitor
            session.when_settled.append(self._take_place)
            return
        if session is not None and is_clean:
            # [MQTT-3.1.2-4].
            broker.registry.end(session)
            session = None
        if session is None and broker.registry.is_full:
            self._visitor.end(Reason.QUOTA_EXCEEDED, "too many sessions")
            return
        self._visitor.welcome(
            self._connect, self._terms, self._identity, session, is_present=session is not None
        )
