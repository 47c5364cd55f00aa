"""What the committer decides, without a thread: operations in, outcomes out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from siltstone.clock import ManualClock
from siltstone.errors import (
    ConflictError,
    OutcomeUnknownError,
    PoisonedError,
    PreconditionError,
    QuotaExceededError,
    SiltstoneError,
    UsageError,
)
from siltstone.store.kv.api import DEFAULT_FAMILY, Changes
from siltstone.store.kv.faulty import FaultyEngine, WriteFault
from siltstone.store.kv.keys import TIME_END
from siltstone.store.kv.memory import MemoryEngine
from siltstone.store.slab.manifest import SlabId, SlabState
from siltstone.store.tx import catalog
from siltstone.store.tx.catalog import ShardState
from siltstone.store.tx.commit.committer import TransactionCommitter
from siltstone.store.tx.commit.conflicts import ReadRange, exact_topic
from siltstone.store.tx.operations import (
    COMMIT_SERIAL,
    MONOTONIC,
    NO_ID,
    Deletion,
    Operations,
    Requirement,
    Value,
    digest_of,
)
from siltstone.store.tx.settings import KeyValueSettings
from siltstone.topic.grammar import TopicFilter

START_US = 1_000
TERM = 4


class Bench:
    """A committer over an engine in memory."""

    def __init__(self, **settings: Any) -> None:
        self.clock = ManualClock(START_US)
        self.memory = MemoryEngine()
        self.engine = FaultyEngine(self.memory)
        self.settings = KeyValueSettings(**settings)
        catalog.create(self.memory, self.clock, self.settings)
        self.committer = self.opened(ShardState(term=TERM, serial=0, timestamp_us=0))

    def opened(self, state: ShardState | None = None) -> TransactionCommitter:
        stored = catalog.read_state(self.memory, 0) if state is None else state
        record = max(catalog.read_slabs(self.memory).values(), key=lambda r: r.generation)
        return TransactionCommitter(
            self.engine,
            self.clock,
            self.settings,
            record,
            replace(stored, term=TERM),
            database="test",
        )

    def commit(self, *batch: Operations) -> list[SiltstoneError | None]:
        return self.committer.commit(batch)

    def rows(self, text: str = "#") -> list[tuple[str, int, bytes]]:
        slab = self.committer.slab
        found = slab.rows(slab.view(), TopicFilter.parse(text), 0, TIME_END)
        return sorted((row.topic.decode(), row.time_us, row.value) for row in found)

    def stored(self) -> dict[str, list[tuple[bytes, bytes]]]:
        """Return all that the engine holds."""
        return {
            family: self.memory.view(family).items(b"", b"\xff" * 40, 100_000)
            for family in self.memory.families()
        }


def operations(
    writes: dict[tuple[str, int], Value] | None = None,
    *,
    reads: list[tuple[str, int, int]] | None = None,
    read_serial: int = 0,
    deletions: list[tuple[str, int, int]] | None = None,
    required: list[tuple[str, int, bytes | None]] | None = None,
    absent: list[tuple[str, int]] | None = None,
    name: str | None = None,
    term: int = TERM,
    generation: int = 1,
    latest: bool = True,
) -> Operations:
    found = Operations(term, generation, latest, NO_ID if name is None else digest_of(name))
    found.read_serial = read_serial
    for text, since_us, until_us in reads or []:
        parsed = TopicFilter.parse(text)
        topic = exact_topic(parsed)
        found.add_read(ReadRange(topic, None if topic else parsed, since_us, until_us))
    for text, since_us, until_us in deletions or []:
        found.add_deletion(Deletion(TopicFilter.parse(text), since_us, until_us))
        found.deletes_by_wildcard = found.deletes_by_wildcard or "+" in text or "#" in text
    for text, at, value in required or []:
        found.add_requirement(
            Requirement(text.encode(), at, present=True, value=value, guard=False)
        )
    for text, at in absent or []:
        found.add_requirement(
            Requirement(text.encode(), at, present=False, value=None, guard=False)
        )
    found.writes = {(topic.encode(), at): value for (topic, at), value in (writes or {}).items()}
    return found


def kinds(outcomes: list[SiltstoneError | None]) -> list[type | None]:
    return [None if outcome is None else type(outcome) for outcome in outcomes]


class TestGroups:
    def test_a_group_is_one_write_and_each_gets_the_next_serial(self) -> None:
        bench = Bench()
        group = [operations({(f"a/{n}", n): b"%d" % n}) for n in range(5)]
        assert bench.commit(*group) == [None] * 5
        assert [found.serial for found in group] == [1, 2, 3, 4, 5]
        assert (bench.engine.writes, bench.committer.serial) == (1, 5)
        assert bench.rows() == [(f"a/{n}", n, b"%d" % n) for n in range(5)]

    def test_the_last_of_a_group_wins_where_none_has_read(self) -> None:
        bench = Bench()
        bench.commit(*[operations({("a", 1): value}) for value in (b"1", b"2", b"3")])
        assert bench.rows() == [("a", 1, b"3")]

    def test_one_that_is_refused_leaves_no_trace_and_the_others_stand(self) -> None:
        bench = Bench()
        outcomes = bench.commit(
            operations({("a", 1): b"1"}),
            operations({("never/seen", 1): b""}, required=[("b", 1, None)]),
            operations({("c", 1): b"1"}),
        )
        assert kinds(outcomes) == [None, PreconditionError, None]
        assert bench.rows() == [("a", 1, b"1"), ("c", 1, b"1")]
        assert bench.committer.slab.place(b"never/seen") is None

    def test_of_those_that_read_and_write_the_same_only_the_first_succeeds(self) -> None:
        bench = Bench()
        group = [operations({("a", 1): b"%d" % n}, reads=[("a", 0, TIME_END)]) for n in range(4)]
        assert kinds(bench.commit(*group)) == [None, ConflictError, ConflictError, ConflictError]
        assert bench.rows() == [("a", 1, b"0")]

    def test_requirements_see_what_those_before_in_the_group_have_done(self) -> None:
        bench = Bench()
        outcomes = bench.commit(
            operations({("a", 1): b"v"}, absent=[("a", 1)]),
            operations({("b", 1): b""}, required=[("a", 1, b"v")]),
            operations({("c", 1): b""}, absent=[("a", 1)]),
            operations(deletions=[("a", 0, TIME_END)]),
            operations({("d", 1): b""}, absent=[("a", 1)]),
        )
        assert kinds(outcomes) == [None, None, PreconditionError, None, None]
        assert bench.rows() == [("b", 1, b""), ("d", 1, b"")]

    def test_deletions_see_what_those_before_in_the_group_have_written(self) -> None:
        bench = Bench()
        bench.commit(
            operations({("a/1", 1): b"", ("a/2", 1): b""}),
            operations({("a/3", 1): b""}, deletions=[("a/+", 0, TIME_END)]),
            operations({("a/1", 1): b"again"}),
        )
        assert bench.rows() == [("a/1", 1, b"again"), ("a/3", 1, b"")]
        assert bench.engine.writes == 1

    def test_a_deletion_by_wildcards_ends_a_group_that_holds_much(self) -> None:
        bench = Bench()
        many = operations({(f"a/{n}", 1): b"" for n in range(600)})
        delete = operations(deletions=[("a/+", 0, TIME_END)])
        assert bench.commit(many, delete, operations({("b", 1): b""})) == [None] * 3
        assert (bench.engine.writes, bench.rows()) == (2, [("b", 1, b"")])

    def test_a_group_ends_when_it_is_large(self) -> None:
        bench = Bench()
        value = b"v" * (8 * 1024 * 1024)
        assert bench.commit(*[operations({("a", n): value}) for n in range(5)]) == [None] * 5
        assert bench.engine.writes == 3

    def test_what_asks_for_nothing_to_be_stored_stores_nothing(self) -> None:
        bench = Bench()
        bench.commit(operations({("a", 1): b""}))
        checked = operations(required=[("a", 1, None)])
        assert bench.commit(checked) == [None]
        assert (checked.serial, bench.engine.writes) == (1, 1)

    def test_what_was_deleted_at_no_cost_still_has_a_serial(self) -> None:
        bench = Bench()
        delete = operations(deletions=[("none", 0, TIME_END)])
        assert (bench.commit(delete), delete.serial) == ([None], 1)


CONFLICTS = [
    # what was read, what another transaction did since, whether they conflict
    (("a", 0, TIME_END), {"writes": {("a", 5): b"x"}}, True),
    (("a", 0, 5), {"writes": {("a", 5): b"x"}}, False),
    (("a", 0, 6), {"writes": {("a", 5): b"x"}}, True),
    (("a", 6, TIME_END), {"writes": {("a", 5): b"x"}}, False),
    (("a", 5, 6), {"writes": {("a", 5): b"x"}}, True),
    (("b", 0, TIME_END), {"writes": {("a", 5): b"x"}}, False),
    (("#", 0, TIME_END), {"writes": {("a", 5): b"x"}}, True),
    (("+", 0, 5), {"writes": {("a", 5): b"x"}}, False),
    (("a/#", 0, TIME_END), {"writes": {("a", 5): b"x"}}, True),
    (("a/+", 0, TIME_END), {"writes": {("a", 5): b"x"}}, False),
    (("a/+/c", 0, TIME_END), {"writes": {("a/b/d", 5): b"x"}}, False),
    (("a/+/c", 0, TIME_END), {"writes": {("a/b/c", 5): b"x"}}, True),
    (("a", 0, TIME_END), {"writes": {("a", MONOTONIC): b"x"}}, True),
    (("a", 0, START_US), {"writes": {("a", MONOTONIC): b"x"}}, False),
    (("a", START_US, TIME_END), {"writes": {("a", MONOTONIC): b"x"}}, True),
    (("s", 0, TIME_END), {"deletions": [("s", 0, TIME_END)]}, True),
    (("s", 0, TIME_END), {"deletions": [("#", 0, TIME_END)]}, True),
    (("s", 0, TIME_END), {"deletions": [("s", 2, TIME_END)]}, False),
    (("s", 2, TIME_END), {"deletions": [("s", 0, TIME_END)]}, False),
    (("+", 0, TIME_END), {"deletions": [("s", 1, 2)]}, True),
    (("t", 0, TIME_END), {"deletions": [("#", 0, TIME_END)]}, False),
]


class TestConflicts:
    @pytest.mark.parametrize("together", [True, False])
    @pytest.mark.parametrize(("read", "other", "conflicts"), CONFLICTS)
    def test_a_read_conflicts_with_exactly_what_changed_it(
        self, read: tuple[str, int, int], other: Any, conflicts: bool, together: bool
    ) -> None:
        bench = Bench()
        bench.commit(operations({("s", 1): b""}))
        reader = operations({("z", 1): b""}, reads=[read], read_serial=1)
        if together:
            outcome = bench.commit(operations(**other), reader)[1]
        else:
            assert bench.commit(operations(**other)) == [None]
            (outcome,) = bench.commit(reader)
        assert kinds([outcome]) == [ConflictError if conflicts else None]

    def test_what_came_before_the_read_is_no_conflict(self) -> None:
        bench = Bench()
        for n in range(3):
            bench.commit(operations({("a", n): b""}))
        reader = operations({("z", 1): b""}, reads=[("a", 0, TIME_END)], read_serial=3)
        assert bench.commit(reader) == [None]

    def test_a_conflict_says_what_has_changed(self) -> None:
        bench = Bench()
        bench.commit(operations({("a/x", 5): b""}))
        (outcome,) = bench.commit(operations({("b", 1): b""}, reads=[("a/+", 0, 9)]))
        assert str(outcome) == (
            "another transaction changed rows that this one has read, try again: filter='a/+' "
            "topic='a/x' serial=0"
        )

    @pytest.mark.parametrize(("serial", "outcomes"), [(2, [None]), (1, [ConflictError])])
    def test_a_read_one_serial_before_all_that_is_remembered_is_refused(
        self, serial: int, outcomes: list[type | None]
    ) -> None:
        bench = Bench(conflict_window=5.0)
        for topic in ("a", "b", "c"):
            bench.commit(operations({(topic, 1): b""}))
            bench.clock.advance(5.0)
        # Writes behind serial 2 are remembered: that of serial 2, which is `b`, is not.
        reader = operations({("z", 1): b""}, reads=[("b", 0, TIME_END)], read_serial=serial)
        assert kinds(bench.commit(reader)) == outcomes

    def test_what_was_read_before_all_that_is_remembered_is_refused(self) -> None:
        bench = Bench(conflict_window=5.0)
        reader = operations({("z", 1): b""}, reads=[("other", 0, TIME_END)], read_serial=0)
        for _ in range(3):
            bench.commit(operations({("a", 1): b""}))
            bench.clock.advance(5.0)
        (outcome,) = bench.commit(reader)
        assert kinds([outcome]) == [ConflictError]
        assert str(outcome) == (
            "the transaction is too old to be checked for conflicts, try again: serial=0 "
            "remembered_from=2"
        )

    def test_memory_is_bounded_by_number(self) -> None:
        bench = Bench(conflict_writes_max=10)
        for n in range(50):
            bench.commit(operations({(f"a/{n}", 1): b""}))
        reader = operations({("z", 1): b""}, reads=[("other", 0, TIME_END)], read_serial=10)
        assert kinds(bench.commit(reader)) == [ConflictError]
        fresh = operations({("z", 1): b""}, reads=[("other", 0, TIME_END)], read_serial=48)
        assert bench.commit(fresh) == [None]

    def test_settings_may_change_how_much_is_remembered(self) -> None:
        bench = Bench()
        bench.committer.configure(replace(bench.settings, conflict_writes_max=2))
        for n in range(5):
            bench.commit(operations({(f"a/{n}", 1): b""}))
        reader = operations({("z", 1): b""}, reads=[("other", 0, TIME_END)], read_serial=0)
        assert kinds(bench.commit(reader)) == [ConflictError]

    def test_a_context_of_another_leader_is_refused(self) -> None:
        bench = Bench()
        (outcome,) = bench.commit(operations({("a", 1): b""}, term=TERM - 1))
        assert kinds([outcome]) == [ConflictError]
        assert str(outcome) == (
            "the shard got a new leader after the transaction began, try again: term=3 now=4"
        )


class TestTimes:
    def test_given_times_rise_by_one_and_never_fall_behind_the_clock(self) -> None:
        bench = Bench()
        bench.commit(operations({("a", -1): b"1", ("a", -2): b"2"}), operations({("a", -1): b"3"}))
        bench.clock.jump(-0.000_5)
        bench.commit(operations({("a", -1): b"4"}))
        bench.clock.jump(0.001)
        bench.commit(operations({("a", -1): b"5"}))
        assert bench.rows() == [
            ("a", START_US, b"1"),
            ("a", START_US + 1, b"2"),
            ("a", START_US + 2, b"3"),
            ("a", START_US + 3, b"4"),
            ("a", START_US + 500, b"5"),
        ]

    def test_given_times_go_on_after_a_restart_with_the_clock_set_back(self) -> None:
        bench = Bench()
        bench.commit(operations({("a", -1): b"1"}))
        bench.clock.jump(-0.000_9)
        bench.committer = bench.opened()
        bench.commit(operations({("a", -1): b"2"}))
        assert bench.rows() == [("a", START_US, b"1"), ("a", START_US + 1, b"2")]

    def test_a_deletion_until_now_leaves_what_its_own_commit_gives(self) -> None:
        bench = Bench()
        for n in range(3):
            bench.commit(operations({("a", -1): b"%d" % n}))
        bench.commit(operations({("a", -1): b"new"}, deletions=[("a", 0, MONOTONIC)]))
        assert bench.rows() == [("a", START_US + 3, b"new")]

    def test_a_later_row_is_not_deleted_by_a_deletion_until_now(self) -> None:
        bench = Bench()
        bench.commit(operations({("a", 10**9): b"future", ("a", 1): b"past"}))
        bench.commit(operations(deletions=[("#", 0, MONOTONIC)]))
        assert bench.rows() == [("a", 10**9, b"future")]

    def test_the_commit_serial_is_a_value_that_rises(self) -> None:
        bench = Bench()
        for n in range(3):
            bench.commit(operations({("a", n): COMMIT_SERIAL}))
        values = [value for _, _, value in bench.rows()]
        assert values == [n.to_bytes(8, "big") for n in (1, 2, 3)]

    def test_serials_go_on_after_a_restart(self) -> None:
        bench = Bench()
        bench.commit(*[operations({("a", 1): b""}) for _ in range(7)])
        bench.committer = bench.opened()
        found = operations({("a", 1): b""})
        bench.commit(found)
        assert found.serial == 8


class TestIds:
    def test_a_repeated_id_is_acknowledged_and_does_nothing(self) -> None:
        bench = Bench()
        first = operations({("a", 1): b"first"}, name="x")
        bench.commit(first)
        for _ in range(2):
            again = operations({("a", 1): b"again"}, name="x", absent=[("a", 1)])
            assert bench.commit(again) == [None]
            assert (again.serial, again.duplicate, first.duplicate) == (1, True, False)
            bench.committer = bench.opened()
        assert bench.rows() == [("a", 1, b"first")]
        assert bench.committer.find_id(digest_of("x")) == 1
        assert bench.committer.find_id(digest_of("y")) is None

    def test_an_id_counts_within_its_group(self) -> None:
        bench = Bench()
        group = [operations({("a", 1): b"%d" % n}, name="x") for n in range(3)]
        assert bench.commit(*group) == [None] * 3
        assert [(found.serial, found.duplicate) for found in group] == [
            (1, False),
            (1, True),
            (1, True),
        ]
        assert bench.rows() == [("a", 1, b"0")]

    def test_an_id_that_was_refused_may_be_used_again(self) -> None:
        bench = Bench()
        refused = operations({("a", 1): b""}, name="x", required=[("b", 1, None)])
        assert kinds(bench.commit(refused)) == [PreconditionError]
        again = operations({("a", 1): b""}, name="x")
        assert (bench.commit(again), again.duplicate) == ([None], False)

    def test_ids_are_forgotten_when_their_time_is_over(self) -> None:
        bench = Bench(remember_ids=10.0)
        for n in range(600):
            bench.commit(operations({("a", n): b""}, name=str(n)))
        bench.clock.advance(9.0)
        bench.commit(operations({("a", 1): b""}))
        assert bench.committer.find_id(digest_of("0")) == 1
        bench.clock.advance(1.1)
        # A few hundred each time, so that no group is held up by it.
        left = []
        for _ in range(4):
            bench.commit(operations({("a", 1): b""}))
            left.append(len(catalog.oldest_ids(bench.memory, 0, 1_000)))
        assert left == [344, 88, 0, 0]
        assert bench.committer.find_id(digest_of("599")) is None
        again = operations({("a", 1): b""}, name="0")
        bench.commit(again)
        assert not again.duplicate

    def test_an_id_is_remembered_no_shorter_for_a_later_one(self) -> None:
        bench = Bench(remember_ids=10.0)
        bench.commit(operations({("a", 1): b""}, name="old"))
        bench.clock.advance(6.0)
        bench.commit(operations({("a", 1): b""}, name="young"))
        bench.clock.advance(6.0)
        bench.commit(operations({("a", 1): b""}))
        found = [bench.committer.find_id(digest_of(name)) for name in ("old", "young")]
        assert found == [None, 2]
        bench.clock.advance(6.0)
        bench.commit(operations({("a", 1): b""}))
        assert bench.committer.find_id(digest_of("young")) is None


class TestGenerations:
    def test_the_next_generation_begins_where_the_last_ends(self) -> None:
        bench = Bench()
        bench.commit(operations({("a", -1): b"1"}))
        sealed, record = bench.committer.turn_over()
        assert (sealed.state, sealed.until_us, sealed.until_serial) == (
            SlabState.SEALED,
            START_US + 1,
            2,
        )
        assert (record.id, record.since_us, record.first_serial) == (SlabId(0, 2), START_US + 1, 2)
        assert list(catalog.read_slabs(bench.memory).values()) == [sealed, record]
        assert bench.rows() == []
        found = operations({("a", -1): b"2"}, generation=2)
        assert bench.commit(found) == [None]
        assert (found.serial, bench.rows()) == (2, [("a", START_US + 2, b"2")])

    def test_a_generation_does_not_end_before_it_begins_when_the_clock_is_set_back(self) -> None:
        bench = Bench()
        bench.clock.jump(-START_US / 2_000_000)
        sealed, record = bench.committer.turn_over()
        assert (sealed.since_us, sealed.until_us, record.since_us) == (START_US,) * 3

    def test_a_context_of_a_sealed_generation_is_refused(self) -> None:
        bench = Bench()
        bench.committer.turn_over()
        outcomes = bench.commit(
            operations({("a", 1): b""}), operations({("a", 1): b""}, latest=False)
        )
        assert kinds(outcomes) == [ConflictError, UsageError]
        assert str(outcomes[0]) == (
            "the generation was sealed after the transaction began, try again: generation=1 now=2"
        )
        assert str(outcomes[1]) == (
            "the generation is sealed and cannot change: generation=1 now=2"
        )

    def test_structure_is_inherited(self) -> None:
        bench = Bench(thresholds=(-1, 0))
        bench.commit(operations({("a/1", 1): b"", ("$s/1", 1): b""}))
        bench.committer.turn_over()
        bench.committer = bench.opened()
        matches = [
            match.stream.pattern
            for text in ("#", "$s/#")
            for match in bench.committer.slab.match(TopicFilter.parse(text))
        ]
        assert matches == [b"a/+", b"$s/+"]
        bench.commit(operations({("a/2", 1): b""}, generation=2))
        assert bench.rows() == [("a/2", 1, b"")]

    def test_the_time_of_a_turn_is_not_given_again_after_a_restart(self) -> None:
        bench = Bench()
        bench.committer.turn_over()
        bench.clock.jump(-0.000_5)
        bench.committer = bench.opened()
        bench.commit(operations({("a", -1): b""}, generation=2))
        assert bench.rows() == [("a", START_US + 1, b"")]


class TestQuota:
    def test_writes_are_refused_over_the_quota_and_deletions_are_not(self) -> None:
        bench = Bench(quota_bytes=5_000)
        big = operations({("a", 1): b"v" * 5_000})
        assert bench.commit(big) == [None]
        (outcome,) = bench.commit(operations({("b", 1): b""}))
        assert isinstance(outcome, QuotaExceededError)
        assert (outcome.database, outcome.quota_bytes) == ("test", 5_000)
        assert bench.commit(operations(deletions=[("a", 0, TIME_END)])) == [None]
        assert bench.commit(operations({("b", 1): b""})) == [None]
        assert bench.rows() == [("b", 1, b"")]

    def test_what_the_group_holds_counts(self) -> None:
        bench = Bench(quota_bytes=5_000)
        group = [operations({("a", n): b"v" * 2_000}) for n in range(4)]
        assert kinds(bench.commit(*group)) == [None, None, None, QuotaExceededError]


class TestFailures:
    @pytest.mark.parametrize("stored", [True, False])
    def test_a_failed_write_leaves_the_outcome_unknown_and_poisons(self, stored: bool) -> None:
        bench = Bench()
        bench.commit(operations({("a", 1): b""}))
        before = bench.stored()
        bench.engine.script(WriteFault(stored=stored))
        outcomes = bench.commit(
            operations({("b", 1): b""}, name="x"),
            operations({("c", 1): b""}, reads=[("b", 0, TIME_END)], read_serial=1),
            operations({("d", 1): b""}, absent=[("b", 1)]),
            operations(required=[("b", 1, None)]),
        )
        assert kinds(outcomes) == [
            OutcomeUnknownError,
            ConflictError,
            PoisonedError,
            OutcomeUnknownError,
        ]
        assert (bench.stored() == before) == (not stored)
        assert bench.committer.is_poisoned()
        for call in (
            lambda: bench.commit(operations({("e", 1): b""})),
            bench.committer.turn_over,
            lambda: bench.committer.find_id(digest_of("x")),
        ):
            with pytest.raises(PoisonedError) as caught:
                call()
            assert str(caught.value) == (
                "a write failed, close the database and open it again: "
                "slab=0/1 cause=write failed: scripted: path=faulty errno=5"
            )
        # Opened again it is known, by the id and by the rows.
        bench.committer = bench.opened()
        assert bench.committer.find_id(digest_of("x")) == (2 if stored else None)
        assert bench.rows("b") == ([("b", 1, b"")] if stored else [])

    def test_what_was_stored_before_the_failing_group_of_a_batch_is_committed(self) -> None:
        bench = Bench()
        many = operations({(f"a/{n}", 1): b"" for n in range(600)})
        bench.engine.script(WriteFault(nth=2))
        outcomes = bench.commit(
            many, operations(deletions=[("a/+", 0, TIME_END)]), operations({("b", 1): b""})
        )
        assert kinds(outcomes) == [None, OutcomeUnknownError, OutcomeUnknownError]
        assert len(bench.rows()) == 600

    def test_a_look_that_fails_has_changed_nothing(self) -> None:
        bench = Bench()
        bench.commit(operations({("a", 1): b""}))
        bench.memory.drop_family("0.1")
        outcomes = bench.commit(
            operations({("b", 1): b""}),
            operations(required=[("a", 1, None)]),
            operations({("c", 1): b""}),
        )
        assert kinds(outcomes) == [PoisonedError] * 3

    def test_a_failed_turn_poisons(self) -> None:
        bench = Bench()
        bench.engine.script(WriteFault())
        with pytest.raises(PoisonedError):
            bench.committer.turn_over()
        assert bench.committer.is_poisoned()
        assert list(catalog.read_slabs(bench.memory)) == [SlabId(0, 1)]

    def test_a_failed_group_leaves_no_edge_behind(self) -> None:
        bench = Bench()
        bench.engine.script(WriteFault())
        bench.commit(operations({("new/topic", 1): b""}))
        bench.committer = bench.opened()
        assert bench.committer.slab.match(TopicFilter.parse("#")) == []

    def test_structure_rows_and_state_are_written_together(self) -> None:
        bench = Bench()
        written: list[Changes] = []
        write = bench.memory.write

        def note(changes: Changes) -> None:
            written.append(changes)
            write(changes)

        cast("Any", bench.memory).write = note
        bench.commit(operations({("a/b", 1): b"v"}, name="x"))
        (changes,) = written
        assert set(changes.values) == {"0.1", DEFAULT_FAMILY}
        names = {key.split(b"\x00")[0] for key in changes.values[DEFAULT_FAMILY]}
        assert names == {b"edges", b"id", b"id at", b"shard"}
