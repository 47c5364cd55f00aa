from __future__ import annotations

from dataclasses import replace

import pytest

from siltstone.clock import ManualClock
from siltstone.errors import UsageError
from siltstone.session.archive.keys import GroupKeys, SessionKeys
from siltstone.session.archive.records import (
    NEVER_EXPIRES,
    SavedSession,
    SavedSubscription,
    SavedWill,
)
from siltstone.session.archive.store import (
    AwayFilter,
    Due,
    RunStart,
    SessionArchive,
    SessionSummary,
)
from siltstone.store.feed.position import Position
from tests.support.archive_builders import GROUP, SECOND_US, WHOLE, ArchiveWorld, away
from tests.support.tx_builders import World

WILL = SavedWill(topic=b"w", payload=b"gone", delay_seconds=5)


def connected(client_id: str, **others: object) -> SavedSession:
    return replace(away(client_id), connected=True, away_since_us=None, **others)  # type: ignore[arg-type]


def dues(world: ArchiveWorld, now: int) -> list[tuple[str, str, int]]:
    """Return what is due at a second, with its time in seconds."""
    return [
        (due.kind, due.client_id, due.at_us // SECOND_US)
        for due in world.archive.due(now * SECOND_US)
    ]


@pytest.mark.parametrize("timed", [True, False])
def test_a_database_of_another_kind_is_refused(timed: bool) -> None:
    with World(timed=timed) as world, pytest.raises(UsageError, match="database 'commits'"):
        SessionArchive(world.database, world.clock)


class TestRuns:
    def test_each_run_has_the_next_number_and_knows_who_was_connected(self) -> None:
        with ArchiveWorld(shards=2) as world:
            assert world.archive.begin_run() == RunStart(1, [])
            world.archive.create_many([connected("b"), connected("a"), away("c")])
            # A crash before the orphans are seen to loses none of them.
            assert world.restart().begin_run() == RunStart(2, ["a", "b"])
            assert world.restart().begin_run() == RunStart(3, ["a", "b"])
            assert world.archive.mark_away(["a", "nobody"], 7 * SECOND_US) == 1
            assert world.restart().begin_run() == RunStart(4, ["b"])

    def test_orphans_are_away_from_the_time_given_and_keep_their_run(self) -> None:
        with ArchiveWorld() as world:
            world.archive.create(connected("a", run=3, will=WILL, expiry_seconds=60))
            world.archive.mark_away(["a"], 7 * SECOND_US)
            found = world.archive.peek("a")
            assert found is not None
            assert (found.connected, found.away_since_us, found.run) == (False, 7 * SECOND_US, 3)
            assert dues(world, 100) == [("will", "a", 12), ("expiry", "a", 67)]


class TestTaking:
    def test_nobody_is_there_to_be_taken(self) -> None:
        with ArchiveWorld() as world:
            assert (world.archive.take("c"), world.archive.peek("c")) == (None, None)
            assert world.archive.take_many([]) == []

    def test_a_session_survives_whole(self) -> None:
        with ArchiveWorld() as world:
            world.archive.create(WHOLE)
            taken = world.restart().take(WHOLE.client_id)
            assert taken is not None
            assert taken.state == WHOLE

    @pytest.mark.parametrize("client_id", ["", "a/b", "+", "#", "$x", ".\x02", "é", "x" * 30_000])
    def test_any_client_id_will_do(self, client_id: str) -> None:
        with ArchiveWorld() as world:
            filters = ["f/#", "f/" * 15_000 + "#"]
            session = away(client_id, *filters, since=1, expiry=1)
            world.archive.create(session)
            assert world.restart().peek(client_id) == session
            assert sorted(found.filter for found in world.archive.filters()) == filters
            assert dues(world, 5) == [("expiry", client_id, 2)]

    def test_many_are_taken_in_the_order_asked_for_with_one_sync(self) -> None:
        with ArchiveWorld() as world:
            world.archive.create_many([away(f"c{number}") for number in range(50)])
            writes = world.engine.writes
            taken = world.archive.take_many(["c7", "nobody", "c3"])
            assert [None if one is None else one.client_id for one in taken] == ["c7", None, "c3"]
            assert world.engine.writes - writes <= 3

    def test_what_the_former_owner_saved_last_is_seen(self) -> None:
        with ArchiveWorld() as world:
            former = world.archive.create(away("c"))
            former.put_progress(position=Position({0: 5}))
            former.save_later()
            taken = world.archive.take("c")
            assert taken is not None
            assert taken.state == former.state


class TestEarlierVersions:
    """Rows of version 1 end before the identity of the database."""

    def rewrite(self, world: ArchiveWorld, topic: str) -> None:
        value = world.database.get(topic)
        assert value is not None
        assert value.endswith(bytes(4)), "the identity is empty"
        with world.database.transaction() as tx:
            tx.write(topic, b"\x01" + value[1:-4])

    def test_a_session_that_an_earlier_version_saved_can_be_saved_again(self) -> None:
        with ArchiveWorld() as world:
            world.archive.create(away("c", "a"))
            self.rewrite(world, SessionKeys("c").state)
            taken = world.archive.take("c")
            assert taken is not None
            assert taken.state == away("c", "a")
            taken.put_meta(user="u")
            taken.save()
            assert world.archive.peek("c") == taken.state

    def test_a_group_that_an_earlier_version_saved_can_be_saved_again(self) -> None:
        with ArchiveWorld() as world:
            group = replace(GROUP, position=Position(GROUP.position.serials, ""))
            world.archive.create_groups([group])
            self.rewrite(world, GroupKeys("$share/g/a/+").state)
            taken = world.archive.take_group("g", "a/+")
            assert taken is not None
            assert taken.state == group
            taken.put_meta(empty_since_us=None)
            taken.save()
            assert world.archive.peek_group("g", "a/+") == taken.state


class TestCreating:
    def test_it_replaces_what_was_there_with_all_its_traces(self) -> None:
        with ArchiveWorld() as world:
            former = world.archive.create(WHOLE)
            new = SavedSession(client_id=WHOLE.client_id, connected=True)
            owned = world.archive.create(new)
            assert owned.serial > former.serial
            assert owned.state == new
            assert (world.archive.peek(WHOLE.client_id), world.archive.count()) == (new, 1)
            assert ([*world.archive.filters()], world.archive.due(1 << 62)) == ([], [])
            owned.drop()
            assert world.topics() == []

    def test_of_one_id_the_last_one_wins(self) -> None:
        with ArchiveWorld() as world:
            first, second = world.archive.create_many([away("c", "a"), away("c", "b")])
            assert world.archive.peek("c") == second.state == away("c", "b")
            assert first.serial < second.serial
            assert world.archive.count() == 1


class TestTimers:
    def test_nothing_is_early_and_everything_is_due_until_it_is_done(self) -> None:
        with ArchiveWorld() as world:
            world.archive.create(replace(away("c", since=10, expiry=60), will=WILL))
            assert [dues(world, now) for now in (14, 15, 69)] == [
                [],
                [("will", "c", 15)],
                [("will", "c", 15)],
            ]
            world.restart()
            assert dues(world, 70) == [("will", "c", 15), ("expiry", "c", 70)]
            taken = world.archive.take("c")
            assert taken is not None
            taken.put_meta(will=None)
            taken.save()
            assert dues(world, 70) == [("expiry", "c", 70)]
            taken.drop()
            assert dues(world, 1 << 40) == []

    def test_one_microsecond_before_is_too_early(self) -> None:
        with ArchiveWorld() as world:
            world.archive.create(away("c", since=1, expiry=1))
            assert world.archive.due(2 * SECOND_US - 1) == []
            assert world.archive.due(2 * SECOND_US) == [
                Due(kind="expiry", client_id="c", at_us=2 * SECOND_US)
            ]

    def test_who_comes_back_has_no_timers_and_who_goes_again_has_new_ones(self) -> None:
        with ArchiveWorld() as world:
            owned = world.archive.create(away("c", since=10, expiry=60))
            owned.put_meta(connected=True, away_since_us=None)
            owned.save()
            assert dues(world, 1000) == []
            owned.put_meta(connected=False, away_since_us=100 * SECOND_US)
            owned.save()
            assert dues(world, 1000) == [("expiry", "c", 160)]

    def test_a_will_comes_before_the_end_of_its_session(self) -> None:
        with ArchiveWorld(shards=3) as world:
            for name in ("a", "b", "c"):
                will = replace(WILL, delay_seconds=1000)
                world.archive.create(replace(away(name, since=1, expiry=1), will=will))
            found = dues(world, 5)
            assert [kind for kind, _, _ in found] == ["will"] * 3 + ["expiry"] * 3
            assert {at for _, _, at in found} == {2}

    def test_the_earliest_come_first_and_no_more_than_asked_for(self) -> None:
        with ArchiveWorld(shards=2) as world:
            world.archive.create_many([away(f"c{n}", since=n, expiry=1) for n in range(20)])
            found = world.archive.due(1 << 62, 5)
            assert [due.client_id for due in found] == ["c0", "c1", "c2", "c3", "c4"]

    def test_a_clock_that_jumps_loses_nothing(self) -> None:
        with ArchiveWorld() as world:
            world.archive.create(away("c", since=0, expiry=10))
            world.clock.jump(3600)
            assert len(world.archive.due()) == 1
            world.clock.jump(-3600)
            assert world.archive.due() == []
            world.clock.advance(3600)
            assert len(world.archive.due()) == 1

    @pytest.mark.parametrize(
        ("now_us", "held_us", "expected"),
        [
            (50 * SECOND_US, range(0), [20, 21, 40, 50]),
            # 30 seconds may not have passed, so 20 certainly have.
            (50 * SECOND_US, range(10 * SECOND_US, 40 * SECOND_US), [20, 40, 50]),
            (50 * SECOND_US - 1, range(10 * SECOND_US, 40 * SECOND_US), [40]),
            (50 * SECOND_US, range(10 * SECOND_US + 1, 40 * SECOND_US + 1), [20, 50]),
            # What has certainly passed may reach behind the span.
            (80 * SECOND_US, range(10 * SECOND_US, 40 * SECOND_US), [20, 21, 40, 50]),
        ],
    )
    def test_time_that_may_not_have_passed_makes_nothing_due(
        self, now_us: int, held_us: range, expected: list[int]
    ) -> None:
        class HoldingClock(ManualClock):
            def held_us(self) -> range:
                return held_us

        with ArchiveWorld() as world:
            archive = SessionArchive(world.database, HoldingClock())
            for second in (20, 21, 40, 50):
                archive.create(away(f"c{second}", since=0, expiry=second))
            assert [due.at_us // SECOND_US for due in archive.due(now_us)] == expected

    def test_a_group_without_members_is_due_too(self) -> None:
        with ArchiveWorld() as world:
            world.archive.create_groups([GROUP])
            assert (dues(world, 61), dues(world, 62)) == ([], [("group", "$share/g/a/+", 62)])


class TestLists:
    @pytest.mark.parametrize("shards", [1, 3])
    def test_pages_go_in_order_of_client_ids(self, shards: int) -> None:
        names = [*sorted(f"c{number}" for number in range(25)), "d/1", "e.x"]
        with ArchiveWorld(shards=shards) as world:
            world.archive.create_many([away(name) for name in reversed(names)])
            pages: list[list[str]] = []
            after = ""
            while page := [found.client_id for found in world.archive.list(after, 10)]:
                pages.append(page)
                after = page[-1]
            assert pages == [names[:10], names[10:20], names[20:]]
            assert world.archive.count() == len(names)

    def test_a_summary_has_what_a_list_shows(self) -> None:
        with ArchiveWorld() as world:
            world.archive.create(WHOLE)
            assert world.archive.list() == [
                SessionSummary(
                    client_id=WHOLE.client_id,
                    user="ann",
                    version=4,
                    connected=False,
                    run=7,
                    away_since_us=5 * SECOND_US,
                    expires_at_us=3605 * SECOND_US,
                    has_will=True,
                    dropped=3,
                )
            ]

    @pytest.mark.parametrize("shards", [1, 3])
    def test_filters_are_those_of_sessions_that_are_away(self, shards: int) -> None:
        with ArchiveWorld(shards=shards) as world:
            owned = world.archive.create_many(
                [away("a", "x/#", "y"), away("b", "x/#"), away("c", "x/#"), connected("d")]
            )
            owned[3].put_subscription(SavedSubscription(filter="z", qos=2))
            owned[2].put_subscription(SavedSubscription(filter="x/#", qos=2))
            owned[1].put_meta(connected=True, away_since_us=None)
            for session in owned:
                session.save()
            assert [*world.archive.filters()] == [
                AwayFilter(filter="x/#", count=2, qos_max=2),
                AwayFilter(filter="y", count=1, qos_max=1),
            ]
            owned[3].put_meta(connected=False, away_since_us=1)
            owned[0].drop()
            owned[3].save()
            assert [*world.archive.filters()] == [
                AwayFilter(filter="x/#", count=1, qos_max=2),
                AwayFilter(filter="z", count=1, qos_max=2),
            ]

    def test_counts_follow_creation_and_dropping(self) -> None:
        with ArchiveWorld() as world:
            assert (world.archive.count(), len(world.archive.list_groups())) == (0, 0)
            owned = world.archive.create_many([away("a"), away("b")])
            world.archive.create_groups([GROUP])
            owned[0].drop()
            assert (world.archive.count(), len(world.archive.list_groups())) == (1, 1)


class TestGroups:
    def test_a_group_is_taken_whole_and_replaced_whole(self) -> None:
        with ArchiveWorld() as world:
            assert world.archive.take_group("g", "a/+") is None
            assert world.archive.peek_group("g", "a/+") is None
            former = world.archive.create_groups([GROUP])[0]
            taken = world.restart().take_group("g", "a/+")
            assert taken is not None
            assert taken.state == GROUP
            new = replace(
                GROUP, position=Position({}, GROUP.identity), done=(), expiry_seconds=NEVER_EXPIRES
            )
            owned = world.archive.create_groups([new])[0]
            assert owned.serial > taken.serial > former.serial
            assert world.archive.peek_group("g", "a/+") == new
            assert (world.archive.due(1 << 62), len(world.archive.list_groups())) == ([], 1)

    def test_what_the_former_leader_saved_last_is_seen(self) -> None:
        with ArchiveWorld() as world:
            former = world.archive.create_groups([GROUP])[0]
            former.put_progress(position=Position({0: 99}))
            former.save_later()
            taken = world.archive.take_group("g", "a/+")
            assert taken is not None
            assert taken.state == former.state

    def test_groups_are_listed_without_their_progress_from_behind_one_on(self) -> None:
        with ArchiveWorld() as world:
            for name in ("b", "a", "c"):
                world.archive.create_groups([replace(GROUP, name=name)])
            bare = replace(GROUP, position=Position({}, GROUP.identity), done=())
            assert world.archive.list_groups("", 2) == [
                replace(bare, name="a"),
                replace(bare, name="b"),
            ]
            assert world.archive.list_groups("$share/b/a/+") == [replace(bare, name="c")]
