from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from siltstone.broker.retained.log import (
    LOG_SETTINGS,
    Retained,
    RetainedLog,
    cleared,
)
from siltstone.errors import ClosedError
from siltstone.store.database import Database
from siltstone.store.log.read.pieces import Row
from siltstone.store.slab.manifest import SlabId
from tests.support.builders import NOW_US, World, as_given, read_rows

THRESHOLDS = LOG_SETTINGS.thresholds


@contextmanager
def new_log() -> Iterator[tuple[RetainedLog, Database]]:
    with World().database(thresholds=THRESHOLDS) as database:
        yield RetainedLog(database), database


def message(topic: bytes, payload: bytes = b"v", *, expires_us: int = 0) -> Retained:
    return Retained(topic, payload, 5, b"", NOW_US, expires_us, b"p")


MESSAGES = [
    Retained(b"a/b", b"1", 4, b"", NOW_US - 5, 0, b""),
    Retained(b"a/b", b"2", 5, b"\x01\x01", NOW_US - 4, NOW_US + 7_000_000, b"client"),
    Retained(b"$queue/a", b"3", 6, b"", NOW_US - 3, 0, b"client"),
    Retained(b"!queue/a", b"4", 6, b"", NOW_US - 2, 0, b"other"),
    Retained(b"$", b"5", 4, b"", 0, 1, b""),
    Retained("ä/水".encode(), b"\x00\xff", 4, b"", NOW_US, (1 << 64) - 1, "ö".encode()),
    Retained(b"$" + b"x" * 65_534, b"6", 4, b"", NOW_US, 0, b""),
    Retained(b"/" * 65_535, b"7", 4, b"", NOW_US, 0, b""),
    cleared(b"a/b", NOW_US),
    cleared(b"$queue/a", NOW_US),
]


def test_changes_are_replayed_as_they_were_appended() -> None:
    with new_log() as (log, _):
        for given in (MESSAGES[:4], MESSAGES[4:]):
            log.append(given, "synced").wait()
        assert list(log.replay()) == MESSAGES


def test_a_row_is_the_message_with_its_times_as_a_user_property_before_the_others() -> None:
    given = [
        Retained(b"a", b"1", 5, b"\x01\x01", NOW_US, NOW_US + 1, b"client"),
        cleared(b"$a/b", NOW_US),
    ]
    times = b"\x26\x00\x05times\x00\x21"
    with new_log() as (log, database):
        log.append(given, "synced").wait()
        assert as_given(read_rows(database)) == [
            Row(
                "a",
                b"1",
                "client",
                qos=1,
                retain=True,
                properties=times + b"00060a24181e400000060a24181e4001-\x01\x01",
            ),
            Row(
                "!a/b", b"", retain=True, properties=times + b"00060a24181e4000" + b"0" * 16 + b"$"
            ),
        ]


def test_a_row_that_somebody_else_appended_is_of_its_own_time_and_never_expires() -> None:
    row = Row("a", b"1", "p", qos=2, properties=b"\x02\x00\x00\x00\x01")
    with new_log() as (log, database):
        database.append([row]).wait()
        assert list(log.replay()) == [
            Retained(b"a", b"1", 6, b"\x02\x00\x00\x00\x01", NOW_US, 0, b"p")
        ]


def test_all_topics_with_as_many_levels_share_a_stream() -> None:
    topics = [b"%d/%d" % (number, number) for number in range(100)]
    with new_log() as (log, database):
        log.append([message(topic) for topic in [*topics, b"$SYS/a", b"a"]], "synced").wait()
        assert sorted((info.pattern, info.rows) for info in database.structure()) == [
            ("+", 1),
            ("+/+", 101),
        ]


def test_rows_and_bytes_are_counted_when_appended_and_when_replayed() -> None:
    with new_log() as (log, database):
        log.append([message(b"a", b"12"), cleared(b"a", NOW_US)], "synced").wait()
        assert (log.rows, log.size_bytes) == (2, 256 + 4 + 256 + 1)
        again = RetainedLog(database)
        assert len(list(again.replay())) == 2
        assert (again.rows, again.size_bytes) == (log.rows, log.size_bytes)
        again.discount(rows=1, size_bytes=260)
        assert (again.rows, again.size_bytes) == (1, 257)


def test_rows_that_the_store_refuses_are_not_counted() -> None:
    with new_log() as (log, database):
        database.close()
        with pytest.raises(ClosedError):
            log.append([message(b"a")], "synced")
        assert (log.rows, log.size_bytes) == (0, 0)


@pytest.mark.parametrize(
    ("log_rows", "log_bytes", "is_wasteful"),
    [
        (20_200, 0, False),
        (20_201, 0, True),
        (0, (32 << 20) + 2 * (1000 + 25_600), False),
        (0, (32 << 20) + 2 * (1000 + 25_600) + 1, True),
    ],
)
def test_more_than_twice_what_is_live_and_an_allowance_is_a_waste(
    log_rows: int, log_bytes: int, is_wasteful: bool
) -> None:
    with new_log() as (log, _):
        log.rows, log.size_bytes = log_rows, log_bytes
        assert log.is_wasteful(100, 1000) == is_wasteful


def test_what_is_sealed_can_be_dropped_and_what_follows_stays() -> None:
    with new_log() as (log, database):
        log.append([message(b"a")], "written").wait()
        assert log.seal() == [SlabId(0, 1)]
        log.append([message(b"b")], "written").wait()
        sealed = log.seal()
        assert sealed == [SlabId(0, 1), SlabId(0, 2)]
        log.append([message(b"c")], "written").wait()
        log.sync()
        log.drop(sealed)
        assert list(log.replay()) == [message(b"c")]
        assert [info.slab for info in database.slabs()] == [SlabId(0, 3)]


def test_an_expired_message_says_so_from_its_microsecond_on() -> None:
    given = message(b"a", expires_us=NOW_US)
    assert [given.is_expired(NOW_US - 1), given.is_expired(NOW_US)] == [False, True]
    assert not message(b"a").is_expired(1 << 62)
