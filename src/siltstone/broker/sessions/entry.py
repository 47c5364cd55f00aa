"""The entry of an authenticated client into its durable session, which is loaded or created.

This happens in a turn of its client id. The turn waits for the disk several times, and the client
may disconnect meanwhile. An earlier connection is ended first; its session is saved in a separate
turn.

Invariants: a client waits at most `connect_timeout`. The turn ends, whatever happens to the client
or to a step.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from siltstone.broker.access.access import Identity
from siltstone.broker.broker import Broker, Peer
from siltstone.broker.connect.negotiate import Negotiated
from siltstone.broker.sessions.durables import Durables
from siltstone.broker.sessions.timers import Timer
from siltstone.broker.sessions.turns import Turn
from siltstone.broker.sessions.wills import saved_will
from siltstone.errors import SiltstoneError
from siltstone.guard import contain
from siltstone.mqtt.packets import Connect
from siltstone.mqtt.reason import Reason
from siltstone.session.archive.owned.session import OwnedSession
from siltstone.session.archive.records import SavedWill
from siltstone.session.durable.session import Durable
from siltstone.session.session import Session

Act = Callable[[], None]


class EnteringClient(Peer, Protocol):
    """The client that connects."""

    ended: bool

    @property
    def is_in(self) -> bool:
        """Whether its CONNECT was accepted."""

    def stop(self) -> None:
        """Stop reading until `go_on` was called as often as `stop`."""

    def go_on(self) -> None:
        """End one `stop`; read again if it was the last."""

    def welcome(
        self,
        connect: Connect,
        terms: Negotiated,
        identity: Identity,
        session: Session | None,
        *,
        is_present: bool,
    ) -> None:
        """Begin the connection with the given session, or with a new one."""


def is_turned_away(broker: Broker, visitor: EnteringClient, client_id: str) -> bool:
    """Refuse a client above `clients_max`, unless it takes over a connection.

    Return whether it was refused.
    """
    if len(broker.clients) < broker.clients_max or client_id in broker.clients:
        return False
    is_set = broker.clients_max == broker.limits.connections_max
    limit = "limits.connections_max" if is_set else "the limit of open files"
    visitor.end(Reason.SERVER_BUSY, f"too many clients are connected: {limit} is reached")
    return True


def is_stranger(visitor: EnteringClient, session: Session | None, identity: Identity) -> bool:
    """Refuse a client whose client id has a session of another user; return whether it was
    refused.
    """
    if session is None or session.user == identity.user:
        return False
    _refuse_stranger(visitor)
    return True


def _refuse_stranger(visitor: EnteringClient) -> None:
    # A user must not end or take over the session of another user.
    visitor.end(Reason.CLIENT_IDENTIFIER_NOT_VALID, "the client id is in use by another user")


class SessionEntry:
    """One client on its way to its session."""

    __slots__ = (
        "_broker",
        "_connect",
        "_durables",
        "_former",
        "_identity",
        "_joining",
        "_terms",
        "_timer",
        "_turn",
        "_visitor",
    )

    def __init__(
        self,
        broker: Broker,
        durables: Durables,
        visitor: EnteringClient,
        connect: Connect,
        terms: Negotiated,
        identity: Identity,
    ) -> None:
        self._broker = broker
        self._durables = durables
        self._visitor = visitor
        self._connect = connect
        self._terms = terms
        self._identity = identity
        # The earlier client of the session, which was ended.
        self._former: Peer | None = None
        # The session while it is saved as connected, until CONNECT is accepted.
        self._joining: tuple[Session, Durable] | None = None
        self._timer: Timer | None = None

    def begin(self) -> None:
        """Start when the client id has its turn."""
        broker = self._broker
        self._timer = broker.timers.at(
            broker.shell.now() + broker.limits.connect_timeout, self._timed_out
        )
        self._turn = Turn(self._terms.client_id, self._take_turn, self._over)
        self._durables.turns.begin(self._turn)

    def _timed_out(self) -> None:
        """Refuse the client, and do not let other turns wait for it."""
        holder = self._durables.turns.holder(self._terms.client_id)
        waits_for = "its turn" if holder is None else holder.waits_for
        self._visitor.end(
            Reason.SERVER_BUSY, f"the session is busy, try again: it waits for {waits_for}"
        )
        self._durables.turns.withdraw(self._turn)
        if self._joining is not None:
            # On a full disk the save may be retried for a long time.
            self._turn.end()

    def _over(self, turn: Turn) -> None:
        """Clean up after the end of the turn, also if a step has failed."""
        if turn is not self._turn:
            return
        self._broker.timers.cancel(self._timer)
        joining, self._joining = self._joining, None
        if joining is not None:
            session, durable = joining
            durable.when_lost = None
            self._broker.leave(session, None)
        if not self._visitor.ended and not self._visitor.is_in:
            self._visitor.end(
                Reason.SERVER_UNAVAILABLE, "internal error: see the log of the broker"
            )

    def _take_turn(self) -> None:
        broker = self._broker
        client_id = self._terms.client_id
        if (
            self._visitor.ended
            or is_turned_away(broker, self._visitor, client_id)
            or is_stranger(self._visitor, broker.registry.find(client_id), self._identity)
        ):
            self._turn.end()
            return
        other = broker.clients.get(client_id)
        if other is None:
            step = self._turn.step("its session to be loaded", self._found)
            self._durables.find(client_id, step)
        elif other is self._former:
            raise AssertionError("internal error: an ended client is still registered")
        else:
            # [MQTT-3.1.4-3]. The session is saved in the next turn; a second turn of this client
            # follows it.
            self._former = other
            turn, self._turn = self._turn, Turn(client_id, self._take_turn, self._over)
            self._durables.turns.begin_next(self._turn)
            try:
                other.end(Reason.SESSION_TAKEN_OVER)
            finally:
                turn.end()

    def _found(self, owned: OwnedSession | SiltstoneError | None) -> None:
        if isinstance(owned, SiltstoneError):
            self._give_up(owned)
        elif self._visitor.ended:
            self._turn.end()
        elif owned is not None and owned.bare.user != self._identity.user:
            _refuse_stranger(self._visitor)
            self._turn.end()
        elif owned is None:
            self._begin_anew()
        elif self._connect.clean_start or self._durables.is_expired(owned.bare):
            # [MQTT-3.1.2-4]; [MQTT-3.1.3-9]: the will is published when the session ends.
            self._publish(owned, owned.bare.will, partial(self._drop, owned))
        else:
            # A will whose delay passed before the client connected again is published.
            will = self._durables.due_will(owned.bare)
            self._publish(owned, will, partial(self._join, owned, is_present=True))

    def _publish(self, owned: OwnedSession, will: SavedWill | None, then: Act) -> None:
        """Publish a will, then call `then`: the next save of the session deletes it."""
        if will is None:
            then()
            return

        def settle(error: Exception | None) -> None:
            if error is not None:
                self._durables.tell(owned.client_id, error)
            then()

        step = self._turn.step("its will to be stored", settle)
        self._broker.due_wills.publish_last(owned, will, step)

    def _drop(self, owned: OwnedSession) -> None:
        self._broker.subscriptions.forget(owned.client_id)
        step = self._turn.step("its former session to be deleted", self._begin_anew)
        self._durables.drop_away(owned, step)

    def _begin_anew(self) -> None:
        broker = self._broker
        # Other clients may have connected meanwhile.
        if self._visitor.ended or is_turned_away(broker, self._visitor, self._terms.client_id):
            self._turn.end()
        elif broker.registry.is_full:
            self._visitor.end(
                Reason.QUOTA_EXCEEDED, "too many sessions: limits.sessions_max is reached"
            )
            self._turn.end()
        elif self._terms.expiry_seconds == 0:
            self._welcome(None, is_present=False)
            self._turn.end()
        elif not broker.alarms.takes_new_sessions:
            self._visitor.end(
                Reason.QUOTA_EXCEEDED, "the disk is full: the broker creates no durable sessions"
            )
            self._turn.end()
        else:
            self._durables.make(
                self._terms.client_id,
                user=self._identity.user,
                version=self._connect.version,
                expiry_seconds=self._terms.expiry_seconds,
                then=self._turn.step("its session to be created", self._made),
            )

    def _made(self, owned: OwnedSession | SiltstoneError) -> None:
        if isinstance(owned, SiltstoneError):
            self._give_up(owned)
        else:
            self._join(owned, is_present=False)

    def _give_up(self, error: SiltstoneError) -> None:
        self._durables.tell(self._terms.client_id, error)
        self._visitor.end(Reason.SERVER_UNAVAILABLE, f"the session cannot be loaded: {error}")
        self._turn.end()

    def _join(self, owned: OwnedSession, *, is_present: bool) -> None:
        """Save the session as connected, then accept the CONNECT."""
        broker = self._broker
        session = broker.registry.create(self._terms.client_id, self._identity.user)
        session.expiry_seconds = self._terms.expiry_seconds
        try:
            durable = self._durables.attach(session, owned, self._terms.window)
        except BaseException:
            # The session stays disconnected, in the archive only.
            broker.registry.forget(session)
            raise
        self._joining = session, durable
        durable.when_lost = self._turn.step("its session to be saved", self._not_joined)
        owned.put_meta(
            connected=True,
            away_since_us=None,
            run=self._durables.run,
            version=self._connect.version,
            expiry_seconds=self._terms.expiry_seconds,
            will=saved_will(self._connect.will),
        )
        let_in = partial(self._let_in, session, durable, is_present=is_present)
        durable.save(self._turn.step("its session to be saved", let_in))

    def _not_joined(self, error: Exception) -> None:
        self._visitor.end(Reason.SERVER_UNAVAILABLE, f"the session cannot be saved: {error}")
        self._turn.end()

    def _let_in(self, session: Session, durable: Durable, *, is_present: bool) -> None:
        if not self._visitor.ended and not is_turned_away(
            self._broker, self._visitor, session.client_id
        ):
            durable.when_lost = None
            self._welcome(session, is_present=is_present)
            if self._visitor.is_in:
                # From now on the client releases the session when it ends.
                self._joining = None
        self._turn.end()

    def _welcome(self, session: Session | None, *, is_present: bool) -> None:
        contain(
            partial(
                self._visitor.welcome,
                self._connect,
                self._terms,
                self._identity,
                session,
                is_present=is_present,
            ),
            partial(self._visitor.end, Reason.UNSPECIFIED_ERROR, "internal error"),
        )
