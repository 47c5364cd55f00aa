"""All sessions by client id: opened, left behind, resumed, ended.

A session ends when its expiry interval has passed since its connection closed, never before; with
it end its subscriptions and what waits for it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice

from siltstone.broker.deliver.router import Router
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
    """The sessions of a broker; `ended` is told of each session that ends."""

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
        self.sessions: dict[str, Session] = {}
        self.subscription_count = 0
        self._expiries: dict[str, Timer] = {}
        # Says how many sessions there are beside these; where they are kept is asked.
        self.away: Callable[[], int] | None = None

    def __len__(self) -> int:
        """Return how many sessions there are, be their clients connected or away."""
        away = self.away
        return len(self.sessions) + (0 if away is None else away())

    @property
    def is_full(self) -> bool:
        """Whether no further session may begin."""
        return len(self) >= self._limits.sessions_max

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
        session.outbox.changing()
        self._timers.cancel(self._expiries.pop(session.client_id, None))

    def leave(self, session: Session, now: float) -> None:
        """Let a session wait for its client, or end it at once."""
        if session.expiry_seconds == 0:
            self.end(session)
        elif session.expiry_seconds != NO_EXPIRY:
            self._expiries[session.client_id] = self._timers.at(
                now + session.expiry_seconds, partial(self.end, session)
            )

    def left_at(self, session: Session) -> float | None:
        """Return when a session was left that will expire; None for any other."""
        timer = self._expiries.get(session.client_id)
        return None if timer is None else timer.at - session.expiry_seconds

    def end(self, session: Session) -> None:
        """Forget a session with all that belongs to it."""
        self.resume(session)
        self.forget(session)
        self._ended(session)

    def forget(self, session: Session) -> None:
        """Know nothing more of a session here; a durable one is kept elsewhere."""
        del self.sessions[session.client_id]
        shared = [
            text
            for text, subscribed in session.subscriptions.items()
            if subscribed.subscription.filter.group is not None
        ]
        for text in shared:
            # Now, for the groups take back what they have lent.
            contain_with(partial(self.drop_route, session), text)
        contain(session.outbox.discard)
        self._drop_routes(session)

    def _drop_routes(self, session: Session) -> None:
        """Take away the subscriptions of a session that has ended, some in each turn of the loop:
        what is still sent to it goes nowhere.
        """
        following = islice(session.subscriptions.values(), SLICE_LEVELS)
        filters = [subscribed.subscription.filter for subscribed in following]
        for topic_filter in filters[: slice_end(filters)]:
            contain_with(partial(self.drop_route, session), topic_filter.text)
        if session.subscriptions:
            self._soon(partial(self._drop_routes, session))

    def count_subscription(self, session: Session, topic_filter: TopicFilter) -> None:
        """Take note of a subscription that a session did not have."""
        self.subscription_count += 1
        if session.durable is not None:
            self._interest.come(topic_filter)

    def drop_route(self, session: Session, text: str) -> None:
        """Take one subscription of a session away."""
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
