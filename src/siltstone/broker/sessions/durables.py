"""Durable sessions while their clients are connected: loaded, fed from the store, saved, left.

A disconnected session exists in the archive only. When its client connects again, the session is
loaded, and its feed delivers all rows that it missed, from its saved position on.

Invariants: the durable state of one client id changes in turns. Sent and acknowledged messages are
saved with a delay of at most one second, and always when a connection ends. A session is saved as
connected before its client receives CONNACK. A commit costs nothing for sessions that it does not
match: their positions are saved from time to time, many together.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol, TypeVar

from siltstone.broker.deliver.feeds import SessionFeeds
from siltstone.broker.deliver.slices import SLICE_LEVELS, slice_end
from siltstone.broker.publish.interest import Interest
from siltstone.broker.sessions.batched_calls import BatchedCalls
from siltstone.broker.sessions.timers import Timers
from siltstone.broker.sessions.turns import Turn, Turns
from siltstone.broker.settings.storage import SessionSettings
from siltstone.clock import Clock
from siltstone.errors import OutcomeUnknownError, SiltstoneError
from siltstone.guard import contain, contain_with
from siltstone.logs import log
from siltstone.session.archive.owned.joint import JointSaves
from siltstone.session.archive.owned.session import OwnedSession
from siltstone.session.archive.records import SavedSession, SavedWill
from siltstone.session.archive.store import SessionArchive
from siltstone.session.durable.backlog import Backlog
from siltstone.session.durable.lag import Lag, backlog_lag
from siltstone.session.durable.saves import SaveScheduler, SaveTicket
from siltstone.session.durable.session import Durable, new_session
from siltstone.session.session import Session
from siltstone.store.feed.pool import StagedFilters
from siltstone.topic.grammar import TopicFilter
from siltstone.units import SECOND_US

Act = Callable[[], None]
Found = OwnedSession | SiltstoneError | None
T = TypeVar("T")

# The interval for saving sessions that have moved, and the number of parts: each time one part.
_SAVE_SECONDS: Final = 0.1
_SAVE_PARTS: Final = 8
# Every session, moved or not, is checked once in this many intervals: half a minute.
_ROUND_PARTS: Final = 300
_LOOK_SECONDS: Final = 1.0
_MISTAKE: Final = "internal error: see the log of the broker"


class SessionShell(Protocol):
    """The functions of the loop that durable sessions need."""

    def now(self) -> float:
        """Return the time of the loop."""

    def soon(self, act: Act) -> None:
        """Run `act` when the current work is done."""

    def soon_from_thread(self, act: Act) -> None:
        """Run `act` on the loop; may be called from any thread."""

    def read_in_thread(self, work: Act, then: Act) -> None:
        """Run `work`, which waits for the disk, in a thread, then `then` on the loop."""


class Durables:
    """The durable sessions of a broker. Everything here runs on the loop."""

    def __init__(
        self,
        archive: SessionArchive,
        feeding: SessionFeeds,
        run: int,
        *,
        shell: SessionShell,
        timers: Timers,
        clock: Clock,
        interest: Interest,
        limits: SessionSettings,
        failed: Callable[[Session, Exception], None],
    ) -> None:
        self.archive = archive
        self.run = run
        self._shell = shell
        self._timers = timers
        self._clock = clock
        self._interest = interest
        self._limits = limits
        self._failed = failed
        self._log = logging.getLogger("siltstone.sessions")
        self.turns = Turns(shell.soon, shell.now)
        self.feeding = feeding
        # The ends of the shards when this run began. The previous run may have sent any row before
        # them.
        self._began = feeding.ends()
        self.sessions: dict[str, Session] = {}
        # The number of sessions in the archive, and of those that are being created. The archive
        # updates its number with each commit, so it is correct after a crash.
        self._kept = archive.count()
        self._made = 0
        # Start positions of the sessions that are being created, each under its own number.
        self.beginning: dict[int, dict[int, int]] = {}
        self._made_ever = 0
        # Sessions that have moved, by part, and the number of the current part.
        self._moved: list[list[Session]] = [[] for _ in range(_SAVE_PARTS)]
        self._part = 0
        self._attached = 0
        # All sessions, the one that was checked longest ago first, and how many checks are due.
        self._rota: OrderedDict[Session, None] = OrderedDict()
        self._turns_due = 0.0
        # The number of checks of sessions.
        self.looks = 0
        # Filters of connected sessions that have not caught up, by client id. Until then messages
        # are stored for them as for disconnected sessions, so that they follow the missed ones.
        self._missing: dict[str, list[tuple[TopicFilter, int]]] = {}
        self._taking: BatchedCalls[str, OwnedSession | None] = BatchedCalls(
            shell.read_in_thread, archive.take_many
        )
        self._making: BatchedCalls[SavedSession, OwnedSession] = BatchedCalls(
            shell.read_in_thread, archive.create_many
        )
        self._timers.at(shell.now() + _SAVE_SECONDS, self._save_some)
        self._later(_LOOK_SECONDS, self._look)

    # The life of a session.

    def find(self, client_id: str, then: Callable[[Found], None]) -> None:
        """Load a disconnected session; call `then` with it, with None, or with an error."""
        self._taking.ask(client_id, then)

    def make(
        self,
        client_id: str,
        *,
        user: str,
        version: int,
        expiry_seconds: int,
        then: Callable[[OwnedSession | SiltstoneError], None],
    ) -> None:
        """Create a session and replace any other of this client id; call `then` with it."""
        saved = new_session(
            client_id,
            user=user,
            version=version,
            expiry_seconds=expiry_seconds,
            run=self.run,
            ends=self.feeding.ends(),
        )
        self._made += 1
        number = self._made_ever = self._made_ever + 1
        self.beginning[number] = dict(saved.position.serials)
        self._making.ask(saved, partial(self._count_made, number, then))

    def _count_made(
        self,
        number: int,
        then: Callable[[OwnedSession | SiltstoneError], None],
        owned: OwnedSession | SiltstoneError,
    ) -> None:
        self._made -= 1
        del self.beginning[number]
        self._kept += not isinstance(owned, SiltstoneError)
        then(owned)

    def away(self) -> int:
        """Return the number of durable sessions whose clients are not connected."""
        return self._kept + self._made - len(self.sessions)

    def is_expired(self, state: SavedSession) -> bool:
        """Return whether a disconnected session has expired."""
        away_us = state.away_since_us
        return (
            away_us is not None
            and state.expiry_seconds != 0xFFFF_FFFF
            and self._clock.passed_us(away_us) >= state.expiry_seconds * SECOND_US
        )

    def due_will(self, state: SavedSession) -> SavedWill | None:
        """Return the will of a disconnected session if it is due.

        [MQTT-3.1.3-9]: it is due when its delay has passed, or when the session ends.
        """
        away_us, will = state.away_since_us, state.will
        if away_us is None or will is None:
            return None
        is_due = self._clock.passed_us(away_us) >= will.delay_seconds * SECOND_US
        return will if is_due or self.is_expired(state) else None

    def attach(self, session: Session, owned: OwnedSession, window: int) -> Durable:
        """Make the session of a connected client durable; it continues at its saved position."""
        durable = Durable(
            owned,
            session.publisher,
            session.outbox,
            ends=self.feeding.ends,
            soon=self._shell.soon,
            hop=self._shell.soon_from_thread,
            later=self._later,
            failed=partial(self._lost, session),
        )
        durable.restore(
            self.feeding.ends(),
            self._began,
            window,
            now=self._shell.now(),
            wall_us=self._clock.now_us(),
        )
        missing = _filters_of(owned.state) if self._interest.is_asked else []
        # Before this line nothing refers to the session; after it nothing can fail.
        session.durable = durable
        if missing:
            self._missing[session.client_id] = missing
        session.received.packet_ids = durable.inbound.certain()
        self.sessions[session.client_id] = session
        self._rota[session] = None
        self._attached += 1
        part = self._moved[self._attached % _SAVE_PARTS]
        part.append(session)
        durable.moved = partial(part.append, session)
        return durable

    def feed(self, session: Session, staged: StagedFilters | None = None) -> None:
        """Start, change or end the feed of a session, after its subscriptions have changed."""
        durable = _durable(session)
        filters = _filters_to_read(session, durable)
        if staged is not None and not filters:
            self.feeding.unstage(staged)
        if durable.feed is None and filters:
            position, credit = durable.next_rows(), durable.spare_credit()
            self.feeding.begin(durable, filters, position, credit, staged)
        elif durable.feed is not None and filters:
            self.feeding.filter(durable, filters)
        elif durable.feed is not None:
            self.feeding.end(durable)
            durable.leave_feed()
        if durable.feed is None or durable.feed.has_caught_up():
            self._miss_no_more(session.client_id)
        else:
            session.outbox.stir()

    def _miss_no_more(self, client_id: str) -> None:
        for topic_filter, qos in self._missing.pop(client_id, ()):
            self._interest.forget(topic_filter, qos)

    def _miss_from_now(self, session: Session, owned: OwnedSession) -> None:
        """Register the filters of a session that disconnects, so that its messages are stored."""
        self._miss_no_more(session.client_id)
        if session.expiry_seconds and self._interest.is_asked:
            for topic_filter, qos in _filters_of(owned.state):
                self._interest.miss(topic_filter, qos)

    def begin(self, session: Session) -> None:
        """Start the feed of a session: first the missed rows, within the limits, then new ones."""
        durable = _durable(session)
        limits = self._limits
        durable.reader.age_max_us = int(limits.backlog_age_max * SECOND_US)
        messages_max, bytes_max = limits.backlog_messages_max, limits.backlog_bytes_max
        if not messages_max and not bytes_max:
            self._feed_in_parts(session, _filters_to_read(session, durable))
        elif limits.backlog_policy == "drop-new":
            durable.reader.backlog = Backlog(messages_max, bytes_max)
            self._feed_in_parts(session, _filters_to_read(session, durable))
        else:
            # The oldest rows are dropped, so all rows must be counted first.
            ends = {shard: lane.missed_until for shard, lane in durable.progress.lanes.items()}
            self.ask(
                partial(
                    backlog_lag,
                    self.feeding.source,
                    durable.owned.state,
                    ends,
                    durable.reader.age_max_us,
                    self._clock.now_us(),
                ),
                partial(self._hear_measured, session),
            )

    def _hear_measured(self, session: Session, lag: Lag | SiltstoneError) -> None:
        # After an error the session would wait forever for its feed, so it is ended.
        mistake = OutcomeUnknownError(_MISTAKE)
        contain_with(partial(self._measured, session), lag, partial(self._lost, session, mistake))

    def _measured(self, session: Session, lag: Lag | SiltstoneError) -> None:
        if self.sessions.get(session.client_id) is not session:
            return
        if isinstance(lag, SiltstoneError):
            self._lost(session, lag)
            return
        limits = self._limits
        _durable(session).reader.backlog = Backlog(
            limits.backlog_messages_max,
            limits.backlog_bytes_max,
            (lag.messages, lag.size_bytes),
        )
        self._feed_in_parts(session, _filters_to_read(session, _durable(session)))

    def _feed_in_parts(
        self,
        session: Session,
        filters: list[TopicFilter],
        start: int = 0,
        staged: StagedFilters | None = None,
    ) -> None:
        """Start the feed of a session; before that, put `filters` into the hub, some in each turn
        of the loop, so that other clients do not wait for thousands of them.

        The feed begins with the filters that the session has at that time. No row is lost before
        it: rows of that time are read from the store.
        """
        if self.sessions.get(session.client_id) is not session or _durable(session).feed:
            # The client has disconnected, or SUBSCRIBE has started the feed.
            if staged is not None:
                self.feeding.unstage(staged)
            return
        stop = start + slice_end(filters[start : start + SLICE_LEVELS])
        if stop == len(filters) and staged is None:
            self.feed(session)
            return
        staged = self.feeding.hub.stage(staged, filters[start:stop])
        if stop == len(filters):
            self.feed(session, staged)
            return
        following = partial(self._feed_in_parts, session, filters, stop, staged)
        # After an error the session would wait forever for its feed, so it is ended.
        mistake = OutcomeUnknownError(_MISTAKE)
        self._shell.soon(partial(contain, following, partial(self._lost, session, mistake)))

    def narrow(self, session: Session) -> None:
        """Drop the waiting rows that no subscription matches any more, and narrow the feed."""
        _durable(session).narrow()
        self.feed(session)

    def leave(self, session: Session, will: SavedWill | None) -> None:
        """Save a session whose client disconnected; delete it if its expiry is 0."""
        durable = _durable(session)
        del self.sessions[session.client_id]
        del self._rota[session]
        session.outbox.moved = None
        turn = Turn(session.client_id, lambda: self._save_last(turn, session, durable, will))
        contain(partial(self._miss_from_now, session, durable.owned))
        contain(partial(self.feeding.end, durable))
        try:
            # At once, because the outbox is about to drop its messages in flight.
            durable.freeze()
        finally:
            # A connection that waits to take over the session must find the state saved here.
            self.turns.begin_next(turn)

    def _save_last(
        self, turn: Turn, session: Session, durable: Durable, will: SavedWill | None
    ) -> None:
        if session.unsettled and not durable.is_lost:
            # Messages of this connection are not on disk yet. Their outcome must be known before
            # the client sends them again.
            again = partial(self._save_last, turn, session, durable, will)
            session.when_settled.append(turn.step("its messages to be stored", again))
            return
        if session.expiry_seconds == 0:
            over = partial(_end, turn, durable)
            self.drop(durable.owned, turn.step("its session to be deleted", over))
            return
        durable.owned.put_meta(
            connected=False,
            away_since_us=self._clock.now_us(),
            expiry_seconds=session.expiry_seconds,
            will=will,
            dropped=durable.dropped(),
            unclean=durable.is_doubtful(),
        )
        durable.close(turn.step("its session to be saved", partial(_end, turn, durable)))

    def _lost(self, session: Session, error: Exception) -> None:
        """Handle an error that ends a session: run its waiting callbacks, end its connection."""
        self.tell(session.client_id, error)
        durable = _durable(session)
        durable.is_lost = True
        waiting, session.when_settled = session.when_settled, []
        for act in waiting:
            # The callbacks may wait, indirectly, for this save.
            contain(act)
        if durable.when_lost is not None:
            durable.when_lost(error)
        elif self.sessions.get(session.client_id) is session:
            self._failed(session, error)

    def forget_rights(self) -> None:
        """Drop the cached read rights of all sessions."""
        for session in self.sessions.values():
            _durable(session).reader.forget_rights()

    def drop(self, owned: OwnedSession, then: Act) -> None:
        """Delete a session; call `then` when this is durable, or has failed."""

        def dropped() -> None:
            self._kept -= 1

        drop = partial(owned.drop_in_parts, self._shell.soon)
        self.carry_out(owned.client_id, drop, then, dropped)

    def drop_away(self, owned: OwnedSession, then: Act) -> None:
        """Delete a disconnected session."""
        if self._interest.is_asked:
            for topic_filter, qos in _filters_of(owned.state):
                self._interest.forget(topic_filter, qos)
        self.drop(owned, then)

    def load_interest(self) -> None:
        """Load the filters of disconnected sessions for the store policies. Blocks."""
        if self._interest.is_asked:
            self._interest.load(
                (TopicFilter.parse(away.filter), away.qos_max, away.count)
                for away in self.archive.filters()
            )

    def carry_out(
        self,
        name: str,
        submit: Callable[[], SaveTicket | None],
        then: Act,
        durable: Act | None = None,
    ) -> None:
        """Commit a change; call `then` when it is durable, or has failed.

        If it is durable, `durable` is called before `then`. If there is nothing to commit, only
        `then` is called.
        """

        def done(error: Exception | None) -> None:
            if error is not None:
                self.tell(name, error)
            elif durable is not None:
                contain(durable)
            contain(then)

        try:
            ticket = submit()
        except SiltstoneError as exc:
            done(exc)
            return
        if ticket is None:
            contain(then)
        else:
            ticket.on_done(lambda known: self._shell.soon_from_thread(partial(done, known.error)))

    # Saving.

    def _save_some(self) -> None:
        """Save one part of the sessions that have moved, and the positions of a few others.

        All moved sessions are saved within a second. All others are checked within half a minute,
        and saved if their saved position is far behind or old.
        """
        self._timers.at(self._shell.now() + _SAVE_SECONDS, self._save_some)
        self._part = (self._part + 1) % _SAVE_PARTS
        part = self._moved[self._part]
        moved = part[:]
        part.clear()
        joint = JointSaves()
        for session in moved:
            if self.sessions.get(session.client_id) is session:
                contain(partial(self._look_after, session, joint))
        contain(joint.submit)
        self._turns_due += len(self._rota) / _ROUND_PARTS
        while self._turns_due >= 1 and self._rota:
            self._turns_due -= 1
            session, _ = self._rota.popitem(last=False)
            self._rota[session] = None
            self.looks += 1
            contain_with(_save_passed, session)

    def _look(self) -> None:
        self._later(_LOOK_SECONDS, self._look)
        self.turns.look()

    def _look_after(self, session: Session, joint: JointSaves) -> None:
        durable = _durable(session)
        self.looks += 1
        # Set this first: the following calls may move the session again.
        session.outbox.moved = durable.moved
        dropped = durable.dropped()
        if dropped != durable.owned.dropped:
            durable.owned.put_meta(dropped=dropped)
            durable.save()
        durable.save_progress(joint)
        if durable.feed is not None and durable.feed.has_caught_up():
            self._miss_no_more(session.client_id)
        if durable.is_finished():
            self.feed(session)
        if durable.is_behind():
            session.outbox.stir()

    def now(self) -> float:
        """Return the time of the loop."""
        return self._shell.now()

    def soon(self, act: Act) -> None:
        """Run `act` when the current work is done."""
        self._shell.soon(act)

    def read_in_thread(self, work: Act, then: Act) -> None:
        """Run `work`, which waits for the disk, in a thread, then `then` on the loop."""
        self._shell.read_in_thread(work, then)

    def ask(self, work: Callable[[], T], then: Callable[[T | SiltstoneError], None]) -> None:
        """Run `work` in a thread; call `then` on the loop with its result or error."""
        answers: list[T | SiltstoneError] = []

        def ask() -> None:
            try:
                answers.append(work())
            except SiltstoneError as exc:
                answers.append(exc)

        def answer() -> None:
            contain_with(then, answers[0] if answers else OutcomeUnknownError(_MISTAKE))

        self._shell.read_in_thread(partial(contain, ask), answer)

    def keeper(self, name: str, submit: Callable[[], SaveTicket | None]) -> SaveScheduler:
        """Return a save scheduler for the session or group of this name."""
        return SaveScheduler(
            submit,
            hop=self._shell.soon_from_thread,
            later=self._later,
            failed=partial(self.tell, name),
        )

    def _later(self, seconds: float, act: Act) -> None:
        self._timers.at(self._shell.now() + seconds, act)

    def tell(self, client_id: str, error: Exception) -> None:
        """Log an error of a session."""
        log(self._log, logging.ERROR, "session_save_failed", client_id=client_id, error=str(error))


def _end(turn: Turn, durable: Durable) -> None:
    """End the last turn of a connection."""
    durable.end()
    turn.end()


def _filters_to_read(session: Session, durable: Durable) -> list[TopicFilter]:
    """Return the filters of the rows that the feed of a session delivers."""
    filters = [
        subscribed.subscription.filter
        for subscribed in session.subscriptions.values()
        if subscribed.subscription.filter.group is None
    ]
    return filters + durable.unfinished()


def _filters_of(state: SavedSession) -> list[tuple[TopicFilter, int]]:
    """Return the filters of a session, each with its QoS."""
    return [(TopicFilter.parse(saved.filter), saved.qos) for saved in state.subscriptions]


def _save_passed(session: Session) -> None:
    _durable(session).save_passed()


def _durable(session: Session) -> Durable:
    assert session.durable is not None
    return session.durable
