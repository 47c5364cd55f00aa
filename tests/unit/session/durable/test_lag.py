from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from siltstone.session.archive.records import (
    NOT_STORED,
    SavedGroup,
    SavedInflight,
    SavedSession,
    SavedSubscription,
    SerialRange,
)
from siltstone.session.durable.lag import (
    Lag,
    backlog_lag,
    group_first,
    group_lag,
    session_first,
    session_lag,
)
from siltstone.store.database import Database
from siltstone.store.feed.pool import RowSource
from siltstone.store.feed.position import Position
from siltstone.store.log.read.pieces import Row
from tests.support.builders import NOW_US, World

SECOND = 1_000_000
EXPIRES_IN_5 = b"\x02\x00\x00\x00\x05"
# Serial, topic, QoS, publisher, properties; one each second, with a value as long as its serial.
ROWS = [
    ("t/0", 1, "p", b""),
    ("t/1", 0, "p", b""),
    ("t/0", 2, "p", b""),
    ("u", 1, "p", b""),
    ("t/0", 1, "me", b""),
    ("t/0", 1, "p", EXPIRES_IN_5),
    ("t/1", 1, "p", b""),
]
END_US = NOW_US + len(ROWS) * SECOND
SESSION = SavedSession(client_id="me", subscriptions=(SavedSubscription(filter="t/+", qos=1),))


@pytest.fixture(scope="module")
def database() -> Iterator[Database]:
    world = World()
    with world.database() as database:
        for serial, (topic, qos, publisher, properties) in enumerate(ROWS):
            row = Row(topic, b"x" * serial, publisher=publisher, qos=qos, properties=properties)
            database.append([row]).wait()
            world.clock.advance(1)
        yield database


def lag(serials: list[int], *, is_more: bool = False) -> Lag:
    oldest = NOW_US + serials[0] * SECOND if serials else None
    return Lag(len(serials), sum(serials), oldest, is_more)


@pytest.mark.parametrize(
    ("changes", "serials"),
    [
        ({}, [0, 2, 4, 5, 6]),
        ({"position": Position({0: 2})}, [2, 4, 5, 6]),
        ({"position": Position({0: 9})}, []),
        ({"done": (SerialRange(0, 0, 3), SerialRange(0, 6, 7))}, [4, 5]),
        ({"subscriptions": ()}, []),
        ({"subscriptions": (SavedSubscription(filter="#", qos=0),)}, []),
        ({"subscriptions": (SavedSubscription(filter="$share/g/#", qos=1),)}, []),
        ({"subscriptions": (SavedSubscription(filter="#", qos=1),)}, [0, 2, 3, 4, 5, 6]),
        (
            {"subscriptions": (SavedSubscription(filter="t/+", qos=2, no_local=True),)},
            [0, 2, 5, 6],
        ),
        (
            {
                "subscriptions": (
                    SavedSubscription(filter="t/0", qos=1, since=Position({0: 4})),
                    SavedSubscription(filter="t/1", qos=1),
                )
            },
            [4, 5, 6],
        ),
    ],
)
def test_a_session_is_behind_by_what_it_will_get(
    database: Database, changes: dict[str, object], serials: list[int]
) -> None:
    session = replace(SESSION, **changes)  # type: ignore[arg-type]
    assert session_lag(database.feed_source(), session, NOW_US) == lag(serials)


def test_what_has_expired_is_not_counted(database: Database) -> None:
    source = database.feed_source()
    last_us = NOW_US + 10 * SECOND
    assert session_lag(source, SESSION, last_us - 1) == lag([0, 2, 4, 5, 6])
    assert session_lag(source, SESSION, last_us + 1) == lag([0, 2, 4, 6])


@pytest.mark.parametrize("count_max", [3, 5])
def test_a_list_counts_no_further_than_it_needs(database: Database, count_max: int) -> None:
    serials = [0, 2, 4, 5, 6]
    found = session_lag(database.feed_source(), SESSION, NOW_US, count_max=count_max)
    assert found == lag(serials[:count_max], is_more=count_max < len(serials))


def test_a_backlog_is_what_was_not_sent_before_and_is_not_too_old(database: Database) -> None:
    source = database.feed_source()
    session = replace(
        SESSION,
        inflight=(SavedInflight(1, 0, 2, 1), SavedInflight(2, NOT_STORED, 0, 1)),
    )
    assert backlog_lag(source, session, {0: 7}, 0, NOW_US) == lag([0, 4, 5, 6])
    assert backlog_lag(source, session, {0: 5}, 0, NOW_US) == lag([0, 4])
    age_us = 4 * SECOND
    assert backlog_lag(source, session, {0: 7}, age_us, NOW_US + 8 * SECOND) == lag([4, 5, 6])


def test_a_group_is_behind_by_all_that_its_filter_matches(database: Database) -> None:
    group = SavedGroup(name="g", filter="t/+")
    source = database.feed_source()
    assert group_lag(source, group, NOW_US) == lag([0, 1, 2, 4, 5, 6])
    assert group_lag(source, group, NOW_US, count_max=2) == lag([0, 1], is_more=True)
    moved = replace(group, position=Position({0: 1}), done=(SerialRange(0, 2, 5),))
    assert group_lag(source, moved, END_US + 60 * SECOND) == lag([1, 6])


def test_rows_that_retention_took_are_counted_for_a_session_that_had_a_place() -> None:
    world = World()
    with world.database() as database:
        for number in range(4):
            database.append([Row("t/0", b"%d" % number, qos=1)]).wait()
            if number == 2:
                database.seal()
        database.drop_slab(database.slabs()[0].slab)
        source = database.feed_source()
        placed = replace(SESSION, position=Position({0: 1}))
        found = [session_lag(source, saved, END_US) for saved in (placed, SESSION)]
    assert [(each.messages, each.gone) for each in found] == [(1, 2), (1, 0)]


@pytest.fixture
def generations() -> Iterator[RowSource]:
    """Three generations of two rows, opened by a process that does not write them."""
    world = World()
    with world.database() as database:
        for number in range(6):
            database.append([Row("t/0", b"x", qos=1)]).wait()
            world.clock.advance(1)
            if number in (1, 3):
                database.seal()
        with world.reader() as reader:
            yield reader.feed_source()


def test_another_process_counts_the_rows_of_all_generations(generations: RowSource) -> None:
    counted = Lag(6, 6, NOW_US, is_more=False)
    assert session_lag(generations, SESSION, END_US) == counted
    assert group_lag(generations, SavedGroup(name="g", filter="t/+"), END_US) == counted
    placed = replace(SESSION, position=Position({0: 5}))
    assert session_lag(generations, placed, END_US).messages == 1
    assert session_lag(generations, SESSION, END_US, count_max=3) == Lag(3, 3, NOW_US, is_more=True)


@pytest.mark.parametrize(
    ("changes", "first"),
    [
        ({}, 0),
        ({"position": Position({0: 1})}, 2),
        ({"done": (SerialRange(0, 0, 3),)}, 4),
        ({"position": Position({0: 1}), "inflight": (SavedInflight(1, 0, 1, 1),)}, 1),
        ({"subscriptions": (), "inflight": (SavedInflight(1, NOT_STORED, 0, 1),)}, 6),
        ({"subscriptions": (SavedSubscription(filter="$share/g/#", qos=1),)}, 6),
        ({"subscriptions": (SavedSubscription(filter="none", qos=1),)}, 6),
    ],
)
def test_the_first_row_that_a_session_needs_is_one_that_it_will_get_or_has_in_flight(
    database: Database, changes: dict[str, object], first: int
) -> None:
    session = replace(SESSION, **changes)  # type: ignore[arg-type]
    assert session_first(database.feed_source(), session, {0: 6}, NOW_US) == {0: first}


def test_before_a_start_nothing_is_looked_for(database: Database) -> None:
    source = database.feed_source()
    assert session_first(source, SESSION, {0: 6}, NOW_US, starts={0: 1}) == {0: 2}
    assert session_first(source, SESSION, {0: 4}, NOW_US, starts={0: 3}) == {0: 4}


def test_the_first_row_that_a_group_needs_is_not_done_and_not_expired(database: Database) -> None:
    source = database.feed_source()
    group = SavedGroup(name="g", filter="t/+", done=(SerialRange(0, 0, 5),))
    assert group_first(source, group, {0: 7}, NOW_US) == {0: 5}
    assert group_first(source, group, {0: 7}, END_US + 60 * SECOND) == {0: 6}
    assert group_first(source, group, {0: 5}, NOW_US) == {0: 5}
