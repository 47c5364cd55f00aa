"""The sessions in memory by client id: created, left, resumed, ended.

A session ends when its expiry interval has passed since its connection closed, never before. Its
subscriptions and its waiting messages end with it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice

from siltstone.broker.deliver.router import Router
from siltstone.broker.deliver.shares import LendingTerms
from siltstone.broker.deliver.slices import SLICE_LEVELS, slice_end
from siltstone.broker.publish.interest import Interest
from siltstone.broker.sessions.timers import Timer, Timers
from siltstone.broker.settings.broker import Limits
from siltstone.guard import contain, contain_with
from siltstone.session.sending.delivery import Budget
from siltstone.session.sending.outbox import Outbox, Ready
from siltstone.session.session import NO_EXPIRY, Session
from siltstone.topic.grammar import TopicFilter


class Registry:
    """The sessions of a broker; `ended` is called for each session that ends."""

    def __init__(
        self,
        limits: Limits,
        router: Router,
        unstored: Router,
        interest: Interest,
        timers: Timers,
        ready: Ready,
        *,
        soon: Callable[[Callable[[], None]], None],
        ended: Callable[[Session], None],
    ) -> None:
        self._limits = limits
        self.router = router
        self.unstored = unstored
        self._interest = interest
        self._timers = timers
        self._ready = ready
        self._soon = soon
        self._ended = ended
        self.budget = Budget(limits.queued_bytes_total_max)
        router.terms = LendingTerms(
            ready,
            self.budget,
            limits.queued_messages_max,
            limits.queued_bytes_max,
            limits.inflight_max,
        )
        self.sessions: dict[str, Session] = {}
        self.subscription_count = 0
        self._expiries: dict[str, Timer] = {}
        # Returns the number of sessions that are not in memory; None without durable sessions.
        self.away: Callable[[], int] | None = None

    def __len__(self) -> int:
        """Return the number of all sessions, connected and disconnected."""
        away = self.away
        return len(self.sessions) + (0 if away is None else away())

    @property
    def is_full(self) -> bool:
        """Whether the limit of sessions is reached."""
        return len(self) >= self._limits.sessions_max

    def find(self, client_id: str) -> Session | None:
        """Return the session of a client id."""
        return self.sessions.get(client_id)

    def create(self, client_id: str, user: str) -> Session:
        """Create a session."""
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
        """Cancel the expiry of a session whose client connected again."""
        session.outbox.changing()
        self._timers.cancel(self._expiries.pop(session.client_id, None))

    def leave(self, session: Session, now: float) -> None:
        """Start the expiry of a session whose client disconnected, or end it at once."""
        if session.expiry_seconds == 0:
            self.end(session)
        elif session.expiry_seconds != NO_EXPIRY:
            self._expiries[session.client_id] = self._timers.at(
                now + session.expiry_seconds, partial(self.end, session)
            )

    def left_at(self, session: Session) -> float | None:
        """Return the time when a session with a running expiry was left; None for others."""
        timer = self._expiries.get(session.client_id)
        return None if timer is None else timer.at - session.expiry_seconds

    def end(self, session: Session) -> None:
        """Delete a session with everything that belongs to it."""
        self.resume(session)
        self.forget(session)
        self._ended(session)

    def forget(self, session: Session) -> None:
        """Remove a session from memory; a durable session stays in the archive."""
        del self.sessions[session.client_id]
        shared = [
            text
            for text, subscribed in session.subscriptions.items()
            if subscribed.subscription.filter.group is not None
        ]
        for text in shared:
            # At once, so that the groups take back the messages that they lent to the session.
            contain_with(partial(self.drop_route, session), text)
        contain(session.outbox.discard)
        self._drop_routes(session)

    def _drop_routes(self, session: Session) -> None:
        """Remove the subscriptions of a session that has ended, some in each turn of the loop.

        Messages that are still sent to the session are discarded.
        """
        following = islice(session.subscriptions.values(), SLICE_LEVELS)
        filters = [subscribed.subscription.filter for subscribed in following]
        for topic_filter in filters[: slice_end(filters)]:
            contain_with(partial(self.drop_route, session), topic_filter.text)
        if session.subscriptions:
            self._soon(partial(self._drop_routes, session))

    def count_subscription(self, session: Session, topic_filter: TopicFilter) -> None:
        """Count a new subscription of a session."""
        self.subscription_count += 1
        if session.durable is not None:
            self._interest.come(topic_filter)

    def drop_route(self, session: Session, text: str) -> None:
        """Remove one subscription of a session."""
        topic_filter = session.subscriptions.pop(text).subscription.filter
        self.subscription_count -= 1
        if session.durable is not None:
            self._interest.go(topic_filter)
        group = session.groups.pop(text, None)
        if topic_filter.group is None:
            router = self.router if session.durable is None else self.unstored
            router.unsubscribe(topic_filter.levels, session.outbox)
        elif group is None:
            self.router.leave(topic_filter.group, topic_filter.levels, session.outbox)
        else:
            self.unstored.leave(topic_filter.group, topic_filter.levels, session.outbox)
            group.leave(session.outbox)
