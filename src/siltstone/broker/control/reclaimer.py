"""Reclaims the space of delivered rows, if the setting `reclaim` of the database asks for it.

A sealed slab is dropped as soon as no durable session and no share group needs a row of it. A pass
over all sessions and groups finds the floor of each shard: the first row that is needed. The floor
starts at the end of the rows that could be dropped. Each of these lowers it:

- a session that is being created, to its start position;
- a session that reads rows, to its first unacknowledged row; a group in memory likewise;
- any other session or group, to its saved position. If this is in the oldest slab, the slab is read
  to find the first row to deliver: a disconnected session may need no row of it.

Invariant: a row that is needed now is at or above the floor at every later moment of the pass,
because positions only move forward. An operation that moves a position back takes a pin, and then
the pass drops nothing.

Everything here runs on the loop, except the work that waits for the disk.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final, NamedTuple, Protocol, TypeVar

from siltstone.broker.control.pins import Pins
from siltstone.broker.sessions.durables import Durables
from siltstone.broker.sessions.groups import StoredShareGroups
from siltstone.broker.sessions.timers import Timer, Timers
from siltstone.clock import Clock
from siltstone.errors import SiltstoneError
from siltstone.guard import contain, contain_with
from siltstone.logs import log
from siltstone.session.archive.keys import group_id, group_parts
from siltstone.session.archive.places import Page
from siltstone.session.archive.store import SessionArchive
from siltstone.session.durable.lag import group_first, session_first
from siltstone.store.database import Database
from siltstone.store.shard.upkeep import Reclaimable

Act = Callable[[], None]
Serials = Mapping[int, int]
T = TypeVar("T")

_LOG: Final = logging.getLogger("siltstone.store")
_LOOK_SECONDS: Final = 1.0
# The delay after a pass that dropped or sealed a slab.
_AGAIN_SECONDS: Final = 0.1
# A shard that gets no row for this long may be sealed before its generation is due.
QUIET_SECONDS: Final = 5.0
# Disconnected sessions that one call of a thread examines.
_EXAMINED_TOGETHER: Final = 16
# Disconnected sessions for which the rows that they do not need are cached.
_REMEMBERED_MAX: Final = 10_000


class ReclaimerShell(Protocol):
    """The functions of the loop that are needed."""

    def now(self) -> float:
        """Return the loop's time."""


class Holder(NamedTuple):
    """The holder of a row: a session by its client id, or a share group by its filter."""

    kind: str
    name: str

    def __str__(self) -> str:
        """Return the text for the operator."""
        return f"{self.kind} {self.name}" if self.name else self.kind


SESSION: Final = "session"
GROUP: Final = "share group"
_FEED: Final = Holder("a message that is being delivered", "")


class _Pass:
    """One search for the floors."""

    def __init__(self, floors: dict[int, int], oldest: dict[int, int], pinned: int) -> None:
        self.floors = floors
        # The end of the oldest slab of each shard, which is dropped first.
        self.oldest = oldest
        self.pinned = pinned
        # The holder that set the floor of a shard.
        self.holders: dict[int, Holder] = {}

    def lower(self, needed: Serials, holder: Holder) -> None:
        """Lower the floors to the first row of each shard that a holder needs."""
        for shard, serial in needed.items():
            if shard in self.floors and serial < self.floors[shard]:
                self.floors[shard] = serial
                self.holders[shard] = holder

    @property
    def is_hopeless(self) -> bool:
        """Whether no slab of any shard can be dropped."""
        return all(serial < self.oldest[shard] for shard, serial in self.floors.items())


class Reclaimer:
    """Finds and drops delivered slabs, periodically, as long as the broker runs."""

    def __init__(
        self,
        database: Database,
        durables: Durables,
        groups: StoredShareGroups,
        *,
        pins: Pins,
        shell: ReclaimerShell,
        timers: Timers,
        clock: Clock,
    ) -> None:
        self._database = database
        self._durables = durables
        self._groups = groups
        self._pins = pins
        self._shell = shell
        self._timers = timers
        self._clock = clock
        self._source = durables.feeding.source
        # The holder of a row in the oldest slab, and the number of rows from this one on.
        self.held_by: Holder | None = None
        self.held_rows = 0
        # The end of each shard, and since when it has not changed.
        self._ends: dict[int, tuple[int, float]] = {}
        # For each disconnected session: it needs no rows before these serials.
        self._known: dict[str, dict[int, int]] = {}
        # The time that decided last which messages are expired.
        self._judged_us = 0
        self._known_at = pins.taken
        self._trouble = ""
        self._timer: Timer | None = None
        self._again(_LOOK_SECONDS)

    def values(self) -> dict[bytes, str]:
        """Return the $SYS values: the reclaimed rows and bytes since the start, and the current
        holder.
        """
        drops = self._database.drops
        return {
            b"store/reclaimed/messages": f"{drops.reclaimed_rows}",
            b"store/reclaimed/bytes": f"{drops.reclaimed_bytes}",
            b"store/held by": "" if self.held_by is None else str(self.held_by),
            b"store/held messages": f"{self.held_rows}",
        }

    def _again(self, seconds: float) -> None:
        # Only one timer at a time, also if an internal error followed an earlier call.
        self._timers.cancel(self._timer)
        self._timer = self._timers.at(self._shell.now() + seconds, self._look)

    def _look(self) -> None:
        contain(self._look_now, self._try_later)

    def _try_later(self) -> None:
        self._again(_LOOK_SECONDS)

    def _look_now(self) -> None:
        is_set = self._database.settings.reclaim == "delivered"
        if not is_set or not self._pins.is_free(self._pins.taken):
            self._again(_LOOK_SECONDS)
            return
        self._ask(self._database.reclaimable, self._begin)

    def _begin(self, found: Reclaimable) -> None:
        """Begin a pass, if there are slabs that could be dropped or sealed."""
        ends = self._durables.feeding.ends()
        floors: dict[int, int] = {}
        oldest: dict[int, int] = {}
        for shard, end in ends.items():
            sealed = found.sealed.get(shard, [])
            if self._is_quiet(shard, end) and found.current.get(shard, 0) == end > 0:
                sealed = [*sealed, end]
            if sealed:
                oldest[shard], floors[shard] = sealed[0], min(sealed[-1], end)
        if not floors:
            self._hold(None)
            self._again(_LOOK_SECONDS)
            return
        if self._known_at != self._pins.taken:
            self._known_at = self._pins.taken
            self._known.clear()
        search = _Pass(floors, oldest, self._pins.taken)
        for begins in self._durables.beginning.values():
            search.lower(begins, _FEED)
        search.lower(self._durables.feeding.hub.behind(), _FEED)
        for text, place in self._groups.places():
            search.lower(place, Holder(GROUP, text))
        self._weigh_former(search, partial(self._find, search, ""))

    def _weigh_former(self, search: _Pass, then: Act) -> None:
        """Check the previous holder first: while it holds the space, the pass can end early."""
        former = self.held_by
        if former is not None and former.kind == SESSION:
            self._weigh(search, [former.name], then)
        elif former is not None and former.kind == GROUP:
            self._weigh_groups(search, [former.name], then)
        else:
            then()

    def _is_quiet(self, shard: int, end: int) -> bool:
        now = self._shell.now()
        known, since = self._ends.get(shard, (-1, now))
        if known != end:
            self._ends[shard] = (end, now)
            return False
        return now - since >= QUIET_SECONDS

    # Sessions, page by page.

    def _find(self, search: _Pass, after: str) -> None:
        if search.is_hopeless:
            self._end(search)
            return
        floors = dict(search.floors)
        self._ask(
            partial(self._durables.archive.sessions_before, floors, after),
            partial(self._found, search),
        )

    def _found(self, search: _Pass, page: Page) -> None:
        if page.after:
            then = partial(self._find, search, page.after)
        else:
            then = partial(self._weigh_groups, search, None, partial(self._end, search))
        self._weigh(search, page.client_ids, then)

    def _weigh(self, search: _Pass, client_ids: list[str], then: Act) -> None:
        """Lower the floors to the rows that these sessions need."""
        away: list[str] = []
        for client_id in client_ids:
            session = self._durables.sessions.get(client_id)
            durable = None if session is None else session.durable
            place = None if durable is None else durable.read_position()
            if place is None:
                away.append(client_id)
            else:
                search.lower(place, Holder(SESSION, client_id))
        self._examine(search, away, then)

    def _examine(self, search: _Pass, client_ids: list[str], then: Act) -> None:
        """Find the rows that disconnected sessions need from their saved states, some at a time."""
        some, rest = client_ids[:_EXAMINED_TOGETHER], client_ids[_EXAMINED_TOGETHER:]
        if not some or search.is_hopeless:
            then()
            return
        now_us = self._certain_us()
        if now_us < self._judged_us:
            # Messages that had expired only because the clock was ahead must be delivered again.
            self._known.clear()
        self._judged_us = now_us
        known = {client_id: self._known.get(client_id, {}) for client_id in some}

        def examined(needs: dict[str, dict[int, int]]) -> None:
            for client_id, needed in needs.items():
                if len(self._known) >= _REMEMBERED_MAX:
                    self._known.clear()
                self._known[client_id] = needed
                search.lower(needed, Holder(SESSION, client_id))
            self._examine(search, rest, then)

        self._ask(partial(self._needs, known, dict(search.oldest), now_us), examined)

    def _certain_us(self) -> int:
        """Return the time that has certainly come; only this time expires messages."""
        return self._clock.now_us() - len(self._clock.held_us())

    def _needs(
        self, known: dict[str, dict[int, int]], ends: Serials, now_us: int
    ) -> dict[str, dict[int, int]]:
        """Return the first row of each shard that sessions have not received; in a thread."""
        found: dict[str, dict[int, int]] = {}
        for client_id, starts in known.items():
            saved = self._durables.archive.peek(client_id)
            if saved is not None:
                first = session_first(self._source, saved, ends, now_us, starts=starts)
                found[client_id] = _at_least(first, ends, dict(saved.position.serials))
        return found

    # Share groups that are not in memory.

    def _weigh_groups(self, search: _Pass, only: list[str] | None, then: Act) -> None:
        """Lower the floors to the rows that these groups need; None means all saved groups."""
        live = {text for text, group in self._groups.groups.items() if group.is_open}

        def weighed(needs: dict[str, dict[int, int]]) -> None:
            for text, needed in needs.items():
                search.lower(needed, Holder(GROUP, text))
            then()

        self._ask(partial(self._needs_of_groups, only, live, dict(search.oldest)), weighed)

    def _needs_of_groups(
        self, only: list[str] | None, live: set[str], ends: Serials
    ) -> dict[str, dict[int, int]]:
        """Return the first row of each shard that groups have not delivered; in a thread."""
        archive = self._durables.archive
        found: dict[str, dict[int, int]] = {}
        for text in _kept_groups(archive) if only is None else only:
            saved = None if text in live else archive.peek_group(*group_parts(text))
            if saved is not None:
                first = group_first(self._source, saved, ends, self._certain_us())
                found[text] = _at_least(first, ends, dict(saved.position.serials))
        return found

    # The end of a pass.

    def _end(self, search: _Pass) -> None:
        held = [shard for shard, serial in search.floors.items() if serial < search.oldest[shard]]
        ends = self._durables.feeding.ends()
        if held:
            shard = max(held, key=lambda shard: ends[shard] - search.floors[shard])
            self._hold(search.holders.get(shard, _FEED), ends[shard] - search.floors[shard])
        else:
            self._hold(None)
        if search.is_hopeless:
            self._again(_LOOK_SECONDS)
            return
        self._ask(partial(self._drop, search), self._dropped)

    def _hold(self, holder: Holder | None, rows: int = 0) -> None:
        self.held_by, self.held_rows = holder, rows

    def _drop(self, search: _Pass) -> bool:
        """Drop slabs without needed rows, and seal those that can be dropped next; in a thread.

        Return whether a slab was dropped or sealed.
        """
        floors = search.floors
        dropped = self._database.reclaim(floors, partial(self._pins.dropping, search.pinned))
        return self._database.seal_delivered(floors) or bool(dropped)

    def _dropped(self, has_moved: bool) -> None:
        self._trouble = ""
        self._again(_AGAIN_SECONDS if has_moved else _LOOK_SECONDS)

    def _ask(self, work: Callable[[], T], then: Callable[[T], None]) -> None:
        """Run `work`, which waits for the disk, in a thread, then `then`; on errors retry later."""

        def answered(answer: T | SiltstoneError) -> None:
            if isinstance(answer, SiltstoneError):
                self._fail(answer)
            else:
                contain_with(then, answer, self._try_later)

        self._durables.ask(work, answered)

    def _fail(self, error: SiltstoneError) -> None:
        # The same error is logged once.
        if str(error) != self._trouble:
            self._trouble = str(error)
            log(
                _LOG,
                logging.WARNING,
                "reclaim_failed",
                database=self._database.name,
                error=str(error),
            )
        self._again(_LOOK_SECONDS)


def _kept_groups(archive: SessionArchive) -> Iterator[str]:
    after = ""
    while listed := archive.list_groups(after):
        for one in listed:
            after = group_id(one.name, one.filter)
            yield after


def _at_least(first: dict[int, int], ends: Serials, position: Serials) -> dict[int, int]:
    """Return the needed rows; beyond the rows that were read, use the saved position."""
    return {
        shard: max(serial, position.get(shard, 0)) if serial >= ends[shard] else serial
        for shard, serial in first.items()
    }
