"""A client that may come in, to a durable session: found or made, one client id's turn at a time.

The turn waits for the disk here and there; meanwhile the visitor may go. An earlier connection is
ended first, and leaves in a turn of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from siltstone.broker.access import Identity
from siltstone.broker.broker import Broker
from siltstone.broker.durables import Durables
from siltstone.broker.terms import Terms
from siltstone.broker.wills import saved_will
from siltstone.errors import SiltstoneError
from siltstone.mqtt.packets import Connect
from siltstone.mqtt.reason import Reason
from siltstone.session.durable import Durable
from siltstone.session.owned_session import OwnedSession
from siltstone.session.session import Session
from siltstone.session.state import SavedWill

Act = Callable[[], None]


class Visitor(Protocol):
    """The client that wants to get in."""

    ended: bool

    def end(self, reason: Reason, text: str = "") -> None:
        """Tell the client why, and close."""

    def welcome(
        self,
        connect: Connect,
        terms: Terms,
        identity: Identity,
        session: Session | None,
        *,
        is_present: bool,
    ) -> None:
        """Let it in, to a session that is there or a new one."""


def is_turned_away(broker: Broker, visitor: Visitor, client_id: str) -> bool:
    """Refuse a visitor where there is no place, nor one that it takes over; tell whether."""
    if len(broker.clients) < broker.limits.connections_max or client_id in broker.clients:
        return False
    visitor.end(Reason.SERVER_BUSY, "too many clients are connected")
    return True


def is_stranger(visitor: Visitor, session: Session | None, identity: Identity) -> bool:
    """Refuse a visitor whose client id has a session of another user; tell whether."""
    if session is None or session.user == identity.user:
        return False
    _refuse_stranger(visitor)
    return True


def _refuse_stranger(visitor: Visitor) -> None:
    # Nobody ends or inherits the session of another user.
    visitor.end(Reason.CLIENT_IDENTIFIER_NOT_VALID, "the client id is in use by another user")


class Entry:
    """One visitor on its way to its session."""

    __slots__ = ("_broker", "_connect", "_durables", "_identity", "_terms", "_visitor")

    def __init__(
        self,
        broker: Broker,
        durables: Durables,
        visitor: Visitor,
        connect: Connect,
        terms: Terms,
        identity: Identity,
    ) -> None:
        self._broker = broker
        self._durables = durables
        self._visitor = visitor
        self._connect = connect
        self._terms = terms
        self._identity = identity

    def begin(self) -> None:
        """Come in when it is this client id's turn."""
        self._durables.turns.begin(self._terms.client_id, self._take_turn)

    def _end_turn(self) -> None:
        self._durables.turns.end(self._terms.client_id)

    def _take_turn(self) -> None:
        broker = self._broker
        client_id = self._terms.client_id
        if (
            self._visitor.ended
            or is_turned_away(broker, self._visitor, client_id)
            or is_stranger(self._visitor, broker.registry.find(client_id), self._identity)
        ):
            self._end_turn()
            return
        other = broker.clients.get(client_id)
        if other is not None:
            # [MQTT-3.1.4-3]. It leaves in the next turn, and then it is this one's again.
            self._durables.turns.begin_next(client_id, self._take_turn)
            other.end(Reason.SESSION_TAKEN_OVER)
            self._end_turn()
            return
        self._durables.find(client_id, self._found)

    def _found(self, owned: OwnedSession | SiltstoneError | None) -> None:
        if isinstance(owned, SiltstoneError):
            self._give_up(owned)
        elif self._visitor.ended:
            self._end_turn()
        elif owned is not None and owned.state.user != self._identity.user:
            _refuse_stranger(self._visitor)
            self._end_turn()
        elif owned is None:
            self._begin_anew()
        elif self._connect.clean_start or self._durables.is_expired(owned.state):
            # [MQTT-3.1.2-4]; [MQTT-3.1.3-9]: with its session ends the delay of its will.
            self._publish(owned, owned.state.will, partial(self._drop, owned))
        else:
            # Its delay was over before the client came back.
            will = self._durables.due_will(owned.state)
            self._publish(owned, will, partial(self._join, owned, is_present=True))

    def _publish(self, owned: OwnedSession, will: SavedWill | None, then: Act) -> None:
        """Publish a will, then go on: what is about to be saved forgets it."""
        if will is None:
            then()
            return

        def settle(error: Exception | None) -> None:
            if error is not None:
                self._durables.tell(owned.client_id, error)
            then()

        self._broker.publish_saved_will(owned.client_id, will, None, settle)

    def _drop(self, owned: OwnedSession) -> None:
        self._broker.subscriptions.forget(owned.client_id)
        self._durables.drop_away(owned, self._begin_anew)

    def _begin_anew(self) -> None:
        broker = self._broker
        # Others may have come in meanwhile.
        if self._visitor.ended or is_turned_away(broker, self._visitor, self._terms.client_id):
            self._end_turn()
        elif broker.registry.is_full:
            self._visitor.end(Reason.QUOTA_EXCEEDED, "too many sessions")
            self._end_turn()
        elif self._terms.expiry_seconds == 0:
            self._visitor.welcome(
                self._connect, self._terms, self._identity, None, is_present=False
            )
            self._end_turn()
        else:
            self._durables.make(
                self._terms.client_id,
                user=self._identity.user,
                version=self._connect.version,
                expiry_seconds=self._terms.expiry_seconds,
                then=self._made,
            )

    def _made(self, owned: OwnedSession | SiltstoneError) -> None:
        if isinstance(owned, SiltstoneError):
            self._give_up(owned)
        else:
            self._join(owned, is_present=False)

    def _give_up(self, error: SiltstoneError) -> None:
        self._visitor.end(Reason.SERVER_UNAVAILABLE, f"the session cannot be loaded: {error}")
        self._end_turn()

    def _join(self, owned: OwnedSession, *, is_present: bool) -> None:
        """Say on disk that the session is connected, then let the visitor in."""
        broker = self._broker
        session = broker.registry.create(self._terms.client_id, self._identity.user)
        session.expiry_seconds = self._terms.expiry_seconds
        durable = self._durables.attach(session, owned, self._terms.window)
        durable.when_lost = partial(self._not_joined, session, durable)
        owned.put_meta(
            connected=True,
            away_since_us=None,
            run=self._durables.run,
            version=self._connect.version,
            expiry_seconds=self._terms.expiry_seconds,
            will=saved_will(self._connect.will),
        )
        durable.save(partial(self._let_in, session, durable, is_present=is_present))

    def _not_joined(self, session: Session, durable: Durable, error: Exception) -> None:
        durable.when_lost = None
        self._visitor.end(Reason.SERVER_UNAVAILABLE, f"the session cannot be saved: {error}")
        self._broker.leave(session, None)
        self._end_turn()

    def _let_in(self, session: Session, durable: Durable, *, is_present: bool) -> None:
        broker = self._broker
        durable.when_lost = None
        if self._visitor.ended or is_turned_away(broker, self._visitor, session.client_id):
            broker.leave(session, None)
        else:
            self._visitor.welcome(
                self._connect, self._terms, self._identity, session, is_present=is_present
            )
        self._end_turn()
