"""All sessions by client id: opened, left behind, resumed, ended.

A session ends when its expiry interval has passed since its connection closed, never before; with
it end its subscriptions and what waits for it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from siltstone.broker.router import Router
from siltstone.broker.settings import Limits
from siltstone.broker.timers import Timer, Timers
from siltstone.session.outbox import Budget, Outbox, Ready
from siltstone.session.session import NO_EXPIRY, Session


class Registry:
    """The sessions of a broker; `ended` is told of each session that ends."""

    def __init__(
        self,
        limits: Limits,
        router: Router,
        timers: Timers,
        ready: Ready,
        *,
        ended: Callable[[Session], None],
    ) -> None:
        self._limits = limits
        self._router = router
        self._timers = timers
        self._ready = ready
        self._ended = ended
        self.budget = Budget(limits.queued_bytes_total_max)
        self.sessions: dict[str, Session] = {}
        self.subscription_count = 0
        self._expiries: dict[str, Timer] = {}

    @property
    def is_full(self) -> bool:
        """Whether no further session may begin."""
        return len(self.sessions) >= self._limits.sessions_max

    def find(self, client_id: str) -> Session | None:
        """Return the session of a client id."""
        return self.sessions.get(client_id)

    def create(self, client_id: str, user: str) -> Session:
        """Begin a session."""
        limits = self._limits
        outbox = Outbox(
            self._ready,
            self.budget,
            limits.queued_messages_max,
            limits.queued_bytes_max,
            limits.queue_policy == "drop-old",
        )
        session = Session(client_id, user, outbox)
        self.sessions[client_id] = session
        return session

    def resume(self, session: Session) -> None:
        """Keep a session that its client has come back for."""
        self._timers.cancel(self._expiries.pop(session.client_id, None))

    def leave(self, session: Session, now: float) -> None:
        """Let a session wait for its client, or end it at once."""
        if session.expiry_seconds == 0:
            self.end(session)
        elif session.expiry_seconds != NO_EXPIRY:
            self._expiries[session.client_id] = self._timers.at(
                now + session.expiry_seconds, partial(self.end, session)
            )

    def end(self, session: Session) -> None:
        """Forget a session with all that belongs to it."""
        self.resume(session)
        del self.sessions[session.client_id]
        for subscribed in list(session.subscriptions.values()):
            self.drop_route(session, subscribed.subscription.filter.text)
        session.outbox.discard()
        self._ended(session)

    def drop_route(self, session: Session, text: str) -> None:
        """Take one subscription of a session away."""
        topic_filter = session.subscriptions.pop(text).subscription.filter
        self.subscription_count -= 1
        if topic_filter.group is None:
            self._router.unsubscribe(topic_filter.levels, session.outbox)
        else:
            self._router.leave(topic_filter.group, topic_filter.levels, session.outbox)
