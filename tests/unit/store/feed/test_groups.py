from __future__ import annotations

import pytest

from siltstone.store.feed.groups import FilterGroups
from tests.support.feed_builders import parsed


def test_the_same_filters_are_one_group_in_any_order() -> None:
    groups = FilterGroups(1)
    first = groups.join(parsed("a", "b/#"))
    assert groups.join(parsed("b/#", "a", "a")) is first
    assert groups.join(parsed("a")) is not first
    assert (first.members, len(groups.all())) == (2, 2)


def test_a_group_goes_with_its_last_member() -> None:
    groups = FilterGroups(1)
    group = groups.join(parsed("a", "b"))
    groups.join(parsed("b", "a"))
    groups.leave(group)
    assert groups.who_wants(b"a") == (group,)
    groups.leave(group)
    assert (groups.who_wants(b"a"), groups.all()) == ((), [])


def test_the_filters_of_a_group_that_is_gone_are_removed_in_parts() -> None:
    groups = FilterGroups(1)
    group = groups.join(parsed("a/1", "a/2", "a/3"))
    assert groups.who_wants(b"a/1") == (group,)
    groups.leave(group)
    # A shard that it has no room for must not matter.
    groups.add_shard()
    assert [groups.who_wants(topic) for topic in (b"a/1", b"a/2", b"a/3")] == [()] * 3
    again = groups.join(parsed("a/1", "a/2", "a/3"))
    # Each filter costs three.
    assert [groups.clear(3) for _ in range(4)] == [True, True, False, False]
    assert again is not group
    assert groups.who_wants(b"a/2") == (again,)


def test_staged_filters_are_found_when_their_feed_begins_and_not_before() -> None:
    groups = FilterGroups(1)
    other = groups.join(parsed("#"))
    staged = groups.stage(None, parsed("a", "gone"))
    assert groups.stage(staged, parsed("b")) is staged
    assert [groups.who_wants(topic) for topic in (b"a", b"b", b"gone")] == [(other,)] * 3
    group = groups.join(parsed("a", "b", "more"), staged)
    assert (group.members, len(groups.all())) == (1, 2)
    for topic in (b"a", b"b", b"more"):
        assert set(groups.who_wants(topic)) == {other, group}
    assert groups.who_wants(b"gone") == (other,)
    groups.leave(group)
    groups.leave(other)
    assert groups.clear(100) is False
    assert len(groups._matcher) == 0  # noqa: SLF001 - what is never found takes memory


@pytest.mark.parametrize("is_needed", [False, True])
def test_staged_filters_that_no_feed_uses_are_left_behind(is_needed: bool) -> None:
    groups = FilterGroups(1)
    known = groups.join(parsed("a", "b"))
    staged = groups.stage(None, parsed("a", "b"))
    if is_needed:
        assert groups.join(parsed("a", "b"), staged) is known
    else:
        groups.unstage(staged)
    assert groups.who_wants(b"a") == (known,)
    assert groups.clear(100) is False
    assert (groups.who_wants(b"a"), known.members) == ((known,), 1 + is_needed)
    assert len(groups._matcher) == 2  # noqa: SLF001


def test_topics_that_the_same_groups_want_have_the_same_answer() -> None:
    groups = FilterGroups(1)
    every, some = groups.join(parsed("#", "a/+")), groups.join(parsed("a/+"))
    assert set(groups.who_wants(b"a/1")) == {every, some}
    assert groups.who_wants(b"a/1") is groups.who_wants(b"a/2")
    assert groups.who_wants(b"b") == (every,)


def test_a_new_group_is_found_for_topics_that_were_asked_for_before() -> None:
    groups = FilterGroups(1)
    assert groups.who_wants(b"a") == ()
    group = groups.join(parsed("a"))
    assert groups.who_wants(b"a") == (group,)


def test_a_new_shard_has_room_in_old_groups_and_new_ones() -> None:
    groups = FilterGroups(1)
    old = groups.join(parsed("a"))
    groups.add_shard()
    new = groups.join(parsed("b"))
    assert (old.live, new.live) == ([{}, {}], [{}, {}])


def test_more_topics_than_are_remembered_are_answered_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("siltstone.store.feed.groups._TOPICS_MAX", 2)
    groups = FilterGroups(1)
    group = groups.join(parsed("a/+"))
    for _ in range(2):
        for number in range(5):
            assert groups.who_wants(b"a/%d" % number) == (group,)
            assert groups.who_wants(b"b/%d" % number) == ()


def test_a_group_that_follows_another_is_found_in_its_place() -> None:
    groups = FilterGroups(1)
    former = groups.join(parsed("a", "b"))
    assert groups.who_wants(b"a") == (former,)
    following = groups.follow(former, parsed("b", "c"))
    groups.leave(former)
    found = [groups.who_wants(topic) for topic in (b"a", b"b", b"c")]
    assert found == [(), (following,), (following,)]
    assert (groups.all(), following.members) == ([following], 1)
    groups.leave(following)
    assert ([groups.who_wants(topic) for topic in (b"b", b"c")], groups.all()) == ([(), ()], [])


def test_a_member_that_follows_leaves_the_others_where_they_are() -> None:
    groups = FilterGroups(1)
    former = groups.join(parsed("a"))
    groups.join(parsed("a"))
    following = groups.follow(former, parsed("a", "b"))
    groups.leave(former)
    assert set(groups.who_wants(b"a")) == {former, following}
    assert groups.follow(following, parsed("b", "a")) is following
    groups.leave(following)
    assert (groups.who_wants(b"b"), following.members, former.members) == ((following,), 1, 1)


def test_a_member_may_follow_to_a_group_that_is_there() -> None:
    groups = FilterGroups(1)
    former, there = groups.join(parsed("a")), groups.join(parsed("b"))
    assert groups.follow(former, parsed("b")) is there
    groups.leave(former)
    assert (groups.who_wants(b"a"), groups.who_wants(b"b"), there.members) == ((), (there,), 2)


def test_filters_that_differ_only_in_their_share_group_are_one() -> None:
    groups = FilterGroups(1)
    plain = groups.join(parsed("a/b"))
    assert groups.join(parsed("$share/g/a/b")) is plain
    both = groups.join(parsed("a/b", "$share/g/a/b", "c"))
    following = groups.follow(both, parsed("a/b"))
    assert following is plain
    groups.leave(both)
    assert groups.who_wants(b"a/b") == (plain,)
