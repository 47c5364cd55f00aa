"""The archive against a dictionary: owners that come and go, brokers that are killed.

Held throughout: what was saved is there, and what was not is not; a former owner changes nothing;
timers, counts, filters and lists say what follows from the sessions, whatever happened on the way.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from siltstone.errors import FencedError, OutcomeUnknownError, SiltstoneError
from siltstone.session.archive.check import archive_problems
from siltstone.session.archive.index import expires_at_us, will_at_us
from siltstone.session.archive.owned.session import OwnedSession
from siltstone.session.archive.records import (
    NEVER_EXPIRES,
    SavedMessage,
    SavedReceived,
    SavedSession,
    SavedSubscription,
    SavedWill,
)
from siltstone.session.archive.store import AwayFilter
from siltstone.store.feed.position import Position
from siltstone.store.tx.commit.ticket import CommitTicket
from tests.support.archive_builders import SECOND_US, ArchiveWorld
from tests.support.tx_model import held

CLIENTS = ("a", "a/b", "+")
FILTERS = ("x", "x/#", "$share/g/y")
END_US = 1 << 62

clients = st.sampled_from(CLIENTS)
picks = st.integers(0, 99)
subscriptions = st.builds(SavedSubscription, filter=st.sampled_from(FILTERS), qos=st.integers(0, 2))
wills = st.none() | st.builds(
    SavedWill, topic=st.just(b"w"), payload=st.just(b""), delay_seconds=st.sampled_from([0, 5, 500])
)
expiries = st.sampled_from([10, 100, NEVER_EXPIRES])
sinces = st.none() | st.integers(0, 5).map(lambda seconds: seconds * SECOND_US)


class ArchiveMachine(RuleBasedStateMachine):
    @initialize(shards=st.sampled_from([1, 3]))
    def open(self, shards: int) -> None:
        self.world = ArchiveWorld(shards=shards)
        self.saved: dict[str, SavedSession] = {}
        self.owners: dict[str, OwnedSession] = {}
        self.handles: list[OwnedSession] = []
        self.run = 0

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.database.close()

    @rule(client=clients, some=st.lists(subscriptions, max_size=2), since=sinces, expiry=expiries)
    def create(
        self, client: str, some: list[SavedSubscription], since: int | None, expiry: int
    ) -> None:
        by_filter = {one.filter: one for one in some}
        session = SavedSession(
            client_id=client,
            connected=since is None,
            away_since_us=since,
            expiry_seconds=expiry,
            subscriptions=tuple(sorted(by_filter.values(), key=lambda one: one.filter)),
        )
        self._own(self.world.archive.create(session))
        self.saved[client] = session

    @rule(client=clients)
    def take(self, client: str) -> None:
        taken = self.world.archive.take(client)
        if client in self.saved:
            assert taken is not None
            assert taken.state == self.saved[client]
            self._own(taken)
        else:
            assert taken is None

    @rule(pick=picks, since=sinces, will=wills, expiry=expiries)
    def change_meta(
        self, pick: int, since: int | None, will: SavedWill | None, expiry: int
    ) -> None:
        for owned in self._picked(pick):
            owned.put_meta(
                connected=since is None, away_since_us=since, will=will, expiry_seconds=expiry
            )

    @rule(pick=picks, one=subscriptions, other=st.sampled_from(FILTERS))
    def change_subscriptions(self, pick: int, one: SavedSubscription, other: str) -> None:
        for owned in self._picked(pick):
            owned.put_subscription(one)
            owned.drop_subscription(other)

    @rule(pick=picks, number=st.integers(0, 3))
    def change_the_rest(self, pick: int, number: int) -> None:
        for owned in self._picked(pick):
            owned.put_progress(position=Position({0: number}), next_packet_id=number + 1)
            owned.put_received(SavedReceived(one) for one in range(1, number))
            owned.drop_extra(number)
            owned.put_extra(SavedMessage(number + 1, b"t", b"p", 1, b"", 0))

    @rule(pick=picks)
    def save(self, pick: int) -> None:
        for owned in self._picked(pick):
            if self._is_owner(owned):
                owned.save()
                self.saved[owned.client_id] = owned.state
            elif owned.is_dirty:
                with pytest.raises(FencedError):
                    owned.save()

    @rule(pick=picks, other=picks, one=subscriptions, refuse=st.booleans())
    def save_twice_at_once(
        self, pick: int, other: int, one: SavedSubscription, refuse: bool
    ) -> None:
        for owned in self._picked(pick):
            if not self._is_owner(owned):
                continue
            before = owned.state
            shard = self.world.database.shard_of(owned.client_id)
            tickets: list[CommitTicket | None] = []
            with held(self.world.database, shard):
                tickets.append(owned.save_later())
                owned.put_subscription(one)
                tickets.append(owned.save_later())
                first = next((ticket for ticket in tickets if ticket is not None), None)
                if refuse and first is not None:
                    # As one of a former leader.
                    first.operations.term += 1
            failed = [self._ended(ticket) for ticket in tickets if ticket is not None]
            if not any(failed):
                self.saved[owned.client_id] = owned.state
            elif len(failed) > 1 and not failed[-1]:
                # What stands alone is saved: progress, and what the client has not released.
                self.saved[owned.client_id] = self._found(owned.client_id)
            owned.save()
            self.saved[owned.client_id] = owned.state
            assert replace(before, subscriptions=()) == replace(owned.state, subscriptions=())

    @rule(pick=picks)
    def drop(self, pick: int) -> None:
        for owned in self._picked(pick):
            self.handles.remove(owned)
            if self._is_owner(owned):
                owned.drop()
                del self.saved[owned.client_id], self.owners[owned.client_id]
            else:
                with pytest.raises(FencedError):
                    owned.drop()

    @rule(pick=picks, stored=st.booleans())
    def power_cut_while_saving(self, pick: int, stored: bool) -> None:
        for owned in self._picked(pick):
            if self._is_owner(owned) and owned.is_dirty:
                self.world.fail_write(stored=stored)
                with pytest.raises(OutcomeUnknownError):
                    owned.save()
                if stored:
                    self.saved[owned.client_id] = owned.state
                self._restart()

    @rule(settle=st.booleans(), at=st.integers(0, 5))
    def kill(self, settle: bool, at: int) -> None:
        self._restart()
        start = self.world.archive.begin_run()
        self.run += 1
        orphans = sorted(name for name, session in self.saved.items() if session.connected)
        assert (start.run, start.orphans) == (self.run, orphans)
        if settle:
            assert self.world.archive.mark_away(orphans, at * SECOND_US) == len(orphans)
            for name in orphans:
                self.saved[name] = replace(
                    self.saved[name],
                    connected=False,
                    away_since_us=at * SECOND_US,
                    unclean=True,
                )

    @invariant()
    def holds_what_was_saved(self) -> None:
        archive = self.world.archive
        found = {name: archive.peek(name) for name in CLIENTS}
        assert found == {name: self.saved.get(name) for name in CLIENTS}
        assert [one.client_id for one in archive.list()] == sorted(self.saved)
        assert archive.count() == len(self.saved)
        assert [*archive_problems(self.world.database.read)] == []

    @invariant()
    def finds_what_follows_from_it(self) -> None:
        dues: list[tuple[int, str, str]] = []
        counts: Counter[str] = Counter()
        qos_max: dict[str, int] = {}
        for session in self.saved.values():
            for kind, at_us in (
                ("will", will_at_us(session)),
                ("expiry", expires_at_us(session)),
            ):
                if at_us is not None:
                    dues.append((at_us, kind, session.client_id))
            for one in () if session.connected else session.subscriptions:
                counts[one.filter] += 1
                qos_max[one.filter] = max(one.qos, qos_max.get(one.filter, 0))
        found = self.world.archive.due(END_US)
        assert sorted((due.at_us, due.kind, due.client_id) for due in found) == sorted(dues)
        assert [due.at_us for due in found] == sorted(at_us for at_us, _, _ in dues)
        found_filters = sorted(self.world.archive.filters(), key=lambda one: one.filter)
        assert found_filters == [
            AwayFilter(filter=text, count=counts[text], qos_max=qos_max[text])
            for text in sorted(counts)
        ]

    def _own(self, owned: OwnedSession) -> None:
        self.handles.append(owned)
        self.owners[owned.client_id] = owned

    def _picked(self, pick: int) -> list[OwnedSession]:
        return [self.handles[pick % len(self.handles)]] if self.handles else []

    def _is_owner(self, owned: OwnedSession) -> bool:
        return self.owners.get(owned.client_id) is owned

    def _restart(self) -> None:
        self.world.restart()
        self.handles.clear()
        self.owners.clear()

    def _found(self, client_id: str) -> SavedSession:
        found = self.world.archive.peek(client_id)
        assert found is not None
        return found

    def _ended(self, ticket: CommitTicket) -> bool:
        """Return whether a save failed."""
        try:
            ticket.wait()
        except SiltstoneError:
            return True
        return False


TestArchive = ArchiveMachine.TestCase
TestArchive.settings = settings(max_examples=50, stateful_step_count=25)
