from __future__ import annotations

import pytest

from siltstone.errors import UsageError
from siltstone.store.kv.keys import TIME_END
from siltstone.store.tx.commit.conflicts import ReadRange
from siltstone.store.tx.operations import (
    COMMIT_SERIAL,
    ID_BYTES_MAX,
    NO_ID,
    Deletion,
    Operations,
    Requirement,
    count_in,
    digest_of,
    end_of,
    start_of,
)
from siltstone.topic.grammar import TopicFilter


def operations() -> Operations:
    return Operations(1, 1, True, NO_ID)  # noqa: FBT003 - taken by position


def test_only_writes_and_deletions_change_anything() -> None:
    reading = operations()
    reading.add_read(ReadRange(b"a", None, 0, 1))
    reading.add_requirement(Requirement(b"a", 0, present=True, value=None, guard=False))
    assert reading.changes_nothing()
    writing = operations()
    writing.writes[b"a", 0] = b""
    assert not writing.changes_nothing()
    deleting = operations()
    deleting.add_deletion(Deletion(TopicFilter.parse("a"), 0, 1))
    assert not deleting.changes_nothing()


def test_what_is_added_is_kept_in_order() -> None:
    found = operations()
    reads = [ReadRange(b"a", None, 0, 1), ReadRange(b"b", None, 0, 1)]
    for read in reads:
        found.add_read(read)
    assert found.reads == reads
    requirements = [Requirement(b"a", n, present=True, value=None, guard=False) for n in range(2)]
    for requirement in requirements:
        found.add_requirement(requirement)
    assert found.requirements == requirements
    deletions = [Deletion(TopicFilter.parse("a"), n, 5) for n in range(2)]
    for deletion in deletions:
        found.add_deletion(deletion)
    assert found.deletions == deletions


def test_the_digest_of_an_id_is_the_same_for_ever() -> None:
    assert digest_of("order-1").hex() == "56eea00bbcad2f0a2ca2cc13492405d7"
    assert digest_of("order-2") != digest_of("order-1")
    assert len(digest_of("x" * ID_BYTES_MAX)) == 16


def test_an_id_has_a_bearable_size() -> None:
    with pytest.raises(UsageError, match="id must not be empty"):
        digest_of("")
    with pytest.raises(UsageError, match="too long: size_bytes=1025 max=1024"):
        digest_of("x" * (ID_BYTES_MAX + 1))


def test_an_end_that_no_time_reaches_is_the_end_of_all() -> None:
    ends = [None, TIME_END + 1, TIME_END, TIME_END - 1, 0]
    assert [end_of(end) for end in ends] == [TIME_END, TIME_END, TIME_END, TIME_END - 1, 0]


def test_times_are_not_negative() -> None:
    assert start_of(7, 0) == 7
    for since_us, until_us in [(-1, 0), (0, -1)]:
        with pytest.raises(UsageError) as caught:
            start_of(since_us, until_us)
        assert str(caught.value) == (
            f"times must be 0 or more: since_us={since_us} until_us={until_us}"
        )


def test_a_count_is_eight_bytes_with_its_sign_and_nothing_is_0() -> None:
    values = [None, (5).to_bytes(8, "big"), b"\xff" * 8 + b"note"]
    assert [count_in(value) for value in values] == [0, 5, -1]
    with pytest.raises(UsageError, match="size_bytes=7"):
        count_in(b"\x00" * 7)


def test_the_commit_serial_shows_its_name() -> None:
    assert repr(COMMIT_SERIAL) == "COMMIT_SERIAL"
