"""Share groups that read the store: their members, their positions, and their expiry.

A group is in memory while it has connected members. A group with a durable session is also saved in
the archive with its position. It continues there when a member returns, until it expires. Any other
group ends with its last member. All groups read their rows from the store, so durable and
non-durable sessions can be members of the same group.

Invariant: a durable member receives SUBACK after its group is saved. The group delivers every
message after that, even if the broker crashes.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final

from siltstone.broker.sessions.batched_calls import BatchedCalls
from siltstone.broker.sessions.durables import Durables
from siltstone.broker.sessions.timers import Timers
from siltstone.broker.sessions.turns import Turn
from siltstone.clock import Clock
from siltstone.errors import SiltstoneError
from siltstone.guard import contain
from siltstone.logs import log
from siltstone.rows.stored import StoredBatch
from siltstone.session.archive.keys import group_parts
from siltstone.session.archive.owned.group import OwnedGroup
from siltstone.session.archive.records import SavedGroup
from siltstone.session.durable.progress import SessionProgress
from siltstone.session.durable.saved_progress import done_of, position_of, restore_progress
from siltstone.session.durable.saves import SaveScheduler, SaveTicket
from siltstone.session.lending import Lending, Member
from siltstone.session.sending.outbox import Outbox
from siltstone.store.feed.pool import Feed
from siltstone.topic.grammar import TopicFilter
from siltstone.units import SECOND_US

Act = Callable[[], None]

_LOG: Final = logging.getLogger("siltstone.groups")
_LOOK_SECONDS: Final = 1.0
# The number of looks in half a minute. Then a position that moved only over rows of other topics is
# saved, if the saved position is far behind or old.
_PASSED_LOOKS: Final = 30
# The interval for saving groups whose members have unacknowledged rows.
_SAVE_SECONDS: Final = 0.1
# The number of groups without members that one turn of the loop saves.
PARKED_AT_ONCE: Final = 20
# The number of groups that are loaded or created together. Their answers take one turn of the loop.
LOADED_AT_ONCE: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupRules:
    """The strategy and limits of groups, and the time that they are kept without members."""

    strategy: str
    loan_timeout: float
    expiry_seconds: int


class StoredShareGroup:
    """One group while it has connected members."""

    def __init__(
        self,
        topic_filter: TopicFilter,
        terms: ShareGroupRules,
        ends: dict[int, int],
        groups: StoredShareGroups,
    ) -> None:
        self._groups = groups
        assert topic_filter.group is not None
        self.name = topic_filter.group
        self.text = topic_filter.text
        self.filter = TopicFilter.parse(b"/".join(topic_filter.levels).decode())
        self.progress = SessionProgress()
        self.lending = Lending(terms.strategy, self.progress)
        # The start position of a new group.
        self.ends = ends
        self.owned: OwnedGroup | None = None
        self.keeper: SaveScheduler | None = None
        self.feed: Feed | None = None
        # Whether the group must outlive its members, and whether the archive was already read.
        self.is_kept = False
        self.is_open = False
        # Callbacks that wait until the group is saved.
        self.waiting: list[Act] = []

    def leave(self, outbox: Outbox) -> None:
        """Remove a member; its unacknowledged rows go to other members, or wait for the next."""
        self._groups.leave(self, outbox)

    def replenish(self, outbox: Outbox) -> None:
        """Lend more rows if members have room, after a member has acknowledged some."""
        self.lending.pace_one(outbox, self._groups.now())
        self._groups.replenish(self)

    @property
    def is_safe(self) -> bool:
        """Whether the group is saved, or need not be."""
        return self.owned is not None or not self.is_kept

    def receive(self, batch: StoredBatch, rows: list[int] | None, now: float, wall_us: int) -> None:
        """Receive rows of the store, and lend them to members."""
        self._groups.busy[self] = None
        self.lending.receive(batch, rows, now, wall_us)

    def freed(self) -> int:
        """Return how many more rows the members can receive; 0 if too few to report."""
        return self.lending.freed()

    def lost(self, serials: int) -> None:
        """Log that the store dropped rows before the group read them."""
        log(
            _LOG,
            logging.WARNING,
            "share_group_rows_lost",
            group=self.text,
            serials=serials,
        )

    def broken(self, error: Exception) -> None:
        """Stop the feed, because the rows cannot be read; it is started again later."""
        self.look()
        self.feed = None
        log(_LOG, logging.ERROR, "share_group_read_failed", group=self.text, error=str(error))

    def restore(self, saved: SavedGroup | None) -> None:
        """Begin at the saved position; a new group begins after the last row at its creation."""
        if saved is None:
            for shard, end in self.ends.items():
                self.progress.start(shard, end, [])
            return
        restore_progress(self.progress, saved.position, saved.done)
        for lane in self.progress.lanes.values():
            if lane.done:
                # Rows before the last acknowledged one may have been sent already.
                lane.doubtful_until = max(lane.done)

    def look(self) -> None:
        """Update the progress with the position of the feed."""
        if self.feed is not None:
            for shard in range(len(self.feed.places)):
                self.progress.lane(shard).pass_by(self.feed.place(shard))

    def place(self) -> dict[int, int]:
        """Return the first serial of each shard that is not acknowledged."""
        self.look()
        return self.progress.position() if self.is_open else self.ends

    def end(self) -> None:
        """Break all reference cycles, after the last save."""
        if self.keeper is not None:
            self.keeper.end()
        self.progress.end()
        self.feed = None

    def put_progress(self) -> None:
        """Pass the progress of the group to the next save."""
        self.look()
        self.progress.saved()
        if self.owned is not None:
            self.owned.put_progress(
                position=position_of(self.progress), done=done_of(self.progress)
            )


class StoredShareGroups:
    """The share groups of a broker. Everything here runs on the loop."""

    def __init__(
        self, durables: Durables, terms: ShareGroupRules, *, timers: Timers, clock: Clock
    ) -> None:
        self._durables = durables
        self._feeding = durables.feeding
        self._terms = terms
        self._timers = timers
        self._clock = clock
        self.groups: dict[str, StoredShareGroup] = {}
        # Groups that received rows and may have unacknowledged ones.
        self.busy: dict[StoredShareGroup, None] = {}
        self._looks = 0
        # Groups that are being created in the archive.
        self._keeping: dict[StoredShareGroup, None] = {}
        archive = durables.archive
        # One thread for all groups: many threads would take the interpreter's lock from the loop.
        self._loading: BatchedCalls[tuple[str, str], OwnedGroup | None] = BatchedCalls(
            durables.read_in_thread, archive.take_groups, together_max=LOADED_AT_ONCE
        )
        self._creating: BatchedCalls[SavedGroup, OwnedGroup] = BatchedCalls(
            durables.read_in_thread, archive.create_groups, together_max=LOADED_AT_ONCE
        )
        # Groups without members that wait to be saved, each in its turn, and the number that this
        # turn of the loop may still save.
        self._parking: deque[Act] = deque()
        self._parks_left = PARKED_AT_ONCE
        self._again()
        self._save_again()

    def now(self) -> float:
        """Return the time of the loop."""
        return self._durables.now()

    def join(
        self, topic_filter: TopicFilter, member: Member, *, is_durable: bool
    ) -> StoredShareGroup:
        """Add a member to a group; it gets rows as soon as the group is loaded."""
        group = self.groups.get(topic_filter.text)
        if group is None:
            group = StoredShareGroup(topic_filter, self._terms, self._feeding.ends(), self)
            self.groups[group.text] = group
            self._begin_turn(group, self._load)
        is_known = any(known.outbox is member.outbox for known in group.lending.members)
        group.lending.join(member, self._durables.now())
        if is_durable and not group.is_kept:
            group.is_kept = True
            if group.is_open:
                self._begin_turn(group, self._keep)
        if group.feed is not None and not is_known:
            self._feeding.hub.grant(group.feed, member.credit)
        return group

    def leave(self, group: StoredShareGroup, outbox: Outbox) -> None:
        """Remove a member; its unacknowledged rows go to other members, or wait for the next."""
        group.lending.leave(outbox, self._durables.now())
        if not group.lending.members and self.groups.get(group.text) is group:
            self._feeding.end(group)
            group.put_progress()
            del self.groups[group.text]
            self.busy.pop(group, None)
            self._begin_turn(group, self._park_in_turn)
        else:
            self._feeding.replenish(group)

    def when_kept(self, texts: Iterable[str], act: Act) -> None:
        """Call `act` when all groups of these filters that must be saved are saved."""
        following = iter(texts)
        for text in following:
            group = self.groups.get(text)
            if group is not None and not group.is_safe:
                # When this group calls back, it is saved or gone.
                group.waiting.append(partial(self.when_kept, following, act))
                return
        act()

    def move(self, text: str, position: dict[int, int], then: Act) -> bool:
        """Move a group in memory to a position; return whether it is in memory.

        The caller has the turn of the group. If the group was moved, `then` is called when the
        position is durable, or at once if the group is not saved.
        """
        group = self.groups.get(text)
        if group is None or not group.is_open:
            return False
        self._feeding.end(group)
        group.lending.reset()
        for shard, serial in position.items():
            group.progress.start(shard, serial, [])
        self._begin(group)
        if group.keeper is None:
            then()
        else:
            group.keeper.save(then)
        return True

    def places(self) -> list[tuple[str, dict[int, int]]]:
        """Return the filters and positions of the groups in memory."""
        return [(group.text, group.place()) for group in [*self._keeping, *self.groups.values()]]

    def replenish(self, group: StoredShareGroup) -> None:
        """Give the feed of a group more credit, if its members have room."""
        self._feeding.replenish(group)

    def forget_rights(self) -> None:
        """Drop the cached read rights of all members."""
        for group in self.groups.values():
            for member in group.lending.members:
                member.forget_rights()

    # Turns, one at a time for each group.

    def _begin_turn(
        self, group: StoredShareGroup, act: Callable[[StoredShareGroup, Turn], None]
    ) -> None:
        turn = Turn(group.text, lambda: act(group, turn))
        self._durables.turns.begin(turn)

    def _load(self, group: StoredShareGroup, turn: Turn) -> None:
        """Load the group from the archive, if it is there."""
        step = turn.step("its group to be loaded", partial(self._loaded, group, turn))
        self._loading.ask((group.name, group.filter.text), step)

    def _loaded(
        self, group: StoredShareGroup, turn: Turn, found: OwnedGroup | SiltstoneError | None
    ) -> None:
        if isinstance(found, SiltstoneError):
            _tell(group.text, found)
            turn.end()
            return
        group.owned = found
        group.restore(None if found is None else found.state)
        if found is not None:
            group.is_kept = True
            found.put_meta(empty_since_us=None)
        self._open(group, turn)

    def _open(self, group: StoredShareGroup, turn: Turn) -> None:
        group.is_open = True
        if group.lending.members:
            self._begin(group)
        if not group.is_safe:
            self._keep(group, turn)
        else:
            self._watch(group)
            turn.end()

    def _begin(self, group: StoredShareGroup) -> None:
        """Start the feed of a group at its position."""
        places = {shard: lane.next_serial for shard, lane in group.progress.lanes.items()}
        self._feeding.begin(group, [group.filter], places, group.lending.begin())

    def _keep(self, group: StoredShareGroup, turn: Turn) -> None:
        """Create the group in the archive."""
        if group.owned is not None:
            turn.end()
            return
        group.look()
        saved = SavedGroup(
            name=group.name,
            filter=group.filter.text,
            strategy=self._terms.strategy,
            expiry_seconds=self._terms.expiry_seconds,
            created_us=self._clock.now_us(),
            position=position_of(group.progress),
            done=done_of(group.progress),
        )
        self._keeping[group] = None
        step = turn.step("its group to be created", partial(self._kept, group, turn))
        self._creating.ask(saved, step)

    def _kept(self, group: StoredShareGroup, turn: Turn, made: OwnedGroup | SiltstoneError) -> None:
        self._keeping.pop(group, None)
        if isinstance(made, SiltstoneError):
            _tell(group.text, made)
        else:
            group.owned = made
            self._watch(group)
        turn.end()

    def _watch(self, group: StoredShareGroup) -> None:
        """Start saving a group that is in the archive, and run the waiting callbacks."""
        self._call_back(group)
        if group.owned is None:
            return

        def submit() -> SaveTicket | None:
            group.put_progress()
            assert group.owned is not None
            return group.owned.save_later()

        group.keeper = self._durables.keeper(group.text, submit)
        group.keeper.save()

    def _call_back(self, group: StoredShareGroup) -> None:
        """Run the callbacks that wait until a group is saved."""
        waiting, group.waiting = group.waiting, []
        for act in waiting:
            contain(act)

    def _park_in_turn(self, group: StoredShareGroup, turn: Turn) -> None:
        """Save a group that lost its last member, now or in a later turn of the loop.

        A session may be the last member of a thousand groups.
        """
        if self._parks_left == PARKED_AT_ONCE:
            self._durables.soon(self._park_more)
        if self._parks_left:
            self._parks_left -= 1
            self._park(group, turn)
        else:
            step = turn.step("its group to be saved", partial(self._park, group, turn))
            self._parking.append(step)

    def _park_more(self) -> None:
        parked = min(PARKED_AT_ONCE, len(self._parking))
        self._parks_left = PARKED_AT_ONCE - parked
        if parked:
            self._durables.soon(self._park_more)
        for _ in range(parked):
            self._parking.popleft()()

    def _park(self, group: StoredShareGroup, turn: Turn) -> None:
        """Save the position of a group that lost its last member; end a group that is not saved."""
        self._call_back(group)
        over = partial(_end, turn, group)
        if group.owned is None or group.keeper is None:
            over()
        else:
            group.owned.put_meta(empty_since_us=self._clock.now_us())
            group.keeper.close(turn.step("its group to be saved", over))

    # Time.

    def _save_again(self) -> None:
        self._timers.at(self._durables.now() + _SAVE_SECONDS, self._save_busy)

    def _save_busy(self) -> None:
        """Save the groups with unacknowledged rows whose progress has changed."""
        self._save_again()
        for group in list(self.busy):
            contain(partial(self._save, group))
            if not group.lending.has_lent():
                self.busy.pop(group, None)

    def _save(self, group: StoredShareGroup) -> None:
        group.look()
        if group.progress.changed and group.keeper is not None:
            group.keeper.save()

    def _again(self) -> None:
        self._timers.at(self._durables.now() + _LOOK_SECONDS, self._look)

    def _look(self) -> None:
        """Save changed groups, and lend rows of stalled members to others."""
        self._again()
        now = self._durables.now()
        self._looks += 1
        for group in list(self.groups.values()):
            contain(partial(self._look_after, group, now))

    def _look_after(self, group: StoredShareGroup, now: float) -> None:
        self._try_again(group)
        self._save(group)
        if self._looks % _PASSED_LOOKS == 0 and group.keeper and group.progress.is_far():
            group.keeper.save()
        group.lending.pace(now)
        group.lending.look_for_stalls(now, self._terms.loan_timeout)
        self._feeding.replenish(group)

    def _try_again(self, group: StoredShareGroup) -> None:
        """Retry the load, the creation or the feed of a group, if it failed before."""
        turns = self._durables.turns
        if not group.is_open and turns.is_free(group.text):
            self._begin_turn(group, self._load)
        elif not group.is_safe and turns.is_free(group.text):
            self._begin_turn(group, self._keep)
        elif group.is_open and group.feed is None:
            self._begin(group)

    def expire(self, text: str, turn: Turn) -> None:
        """Delete a group that has expired without members. `turn` is the turn of the group."""
        archive = self._durables.archive
        name, plain = group_parts(text)
        if text in self.groups:
            turn.end()
        else:
            step = turn.step("its group to be loaded", partial(self._expired, text, turn))
            self._durables.ask(partial(archive.take_group, name, plain), step)

    def _expired(self, text: str, turn: Turn, found: OwnedGroup | SiltstoneError | None) -> None:
        if isinstance(found, SiltstoneError):
            _tell(text, found)
        if found is None or isinstance(found, SiltstoneError):
            turn.end()
            return
        state = found.state
        empty_us = state.empty_since_us
        if empty_us is None or self._clock.passed_us(empty_us) < state.expiry_seconds * SECOND_US:
            turn.end()
        else:
            step = turn.step("its group to be deleted", turn.end)
            self._durables.carry_out(text, found.drop_later, step)


def _end(turn: Turn, group: StoredShareGroup) -> None:
    """End the last turn of a group, and break all reference cycles."""
    group.end()
    turn.end()


def _tell(text: str, error: Exception) -> None:
    log(_LOG, logging.ERROR, "share_group_save_failed", group=text, error=str(error))
