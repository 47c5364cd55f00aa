from __future__ import annotations

from collections.abc import Callable

from siltstone.broker.publish.interest import Interest
from siltstone.topic.grammar import TopicFilter

A, B, ALL = (TopicFilter.parse(text) for text in ("a/+", "b", "#"))
NOBODY, WANTED, MISSED = (False, False), (True, False), (True, True)


def asked() -> Interest:
    return Interest(is_asked=True)


def test_a_topic_is_wanted_by_who_is_connected_and_missed_by_who_is_away() -> None:
    interest = asked()
    interest.come(A)
    interest.miss(B, 1)
    assert [interest.of(topic) for topic in (b"a/1", b"b", b"c")] == [WANTED, MISSED, NOBODY]


def test_who_is_away_with_qos_0_misses_nothing() -> None:
    interest = asked()
    interest.miss(A, 0)
    assert interest.of(b"a/1") == WANTED
    interest.miss(A, 2)
    assert interest.of(b"a/1") == MISSED
    interest.forget(A, 2)
    assert interest.of(b"a/1") == WANTED


def test_coming_and_going_is_counted_for_each_session() -> None:
    interest = asked()
    seen = []
    acts: list[Callable[[], None]] = [
        lambda: interest.come(A),
        lambda: interest.come(A),
        lambda: interest.go(A),
        lambda: interest.miss(A, 1),
        lambda: interest.go(A),
        lambda: interest.forget(A, 1),
    ]
    for act in acts:
        act()
        seen.append(interest.of(b"a/1"))
    assert seen == [WANTED, WANTED, WANTED, MISSED, MISSED, NOBODY]
    assert len(interest) == 0


def test_overlapping_filters_add_up() -> None:
    interest = asked()
    interest.come(A)
    interest.miss(ALL, 1)
    assert (interest.of(b"a/1"), interest.of(b"x"), interest.of(b"$SYS/x")) == (
        MISSED,
        MISSED,
        NOBODY,
    )


def test_what_earlier_runs_have_left_is_taken_in_by_filter_and_number() -> None:
    interest = asked()
    interest.load([(A, 1, 2), (B, 0, 5)])
    interest.forget(A, 1)
    assert (interest.of(b"a/1"), interest.of(b"b"), len(interest)) == (MISSED, WANTED, 2)


def test_where_no_policy_asks_nothing_is_remembered() -> None:
    interest = Interest(is_asked=False)
    interest.come(A)
    interest.miss(B, 1)
    assert (len(interest), interest.of(b"b")) == (0, NOBODY)


def test_members_of_a_share_group_are_interested_like_anybody() -> None:
    interest = asked()
    interest.miss(TopicFilter.parse("$share/g/a/#"), 1)
    assert interest.of(b"a/b/c") == MISSED
