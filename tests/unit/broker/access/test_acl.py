from __future__ import annotations

from itertools import product
from pathlib import PurePath

import pytest

from siltstone.broker.access import acl as acl_module
from siltstone.broker.access.acl import Acl, Action, Rights, covers
from siltstone.errors import UsageError
from siltstone.topic.grammar import TopicFilter

FILE = PurePath("/etc/siltstone/acl")

# In the manner of the one that Mosquitto ships as an example.
MOSQUITTO = """\
# This affects access control for clients with no username.
topic read $SYS/#

# This only affects clients with username "roger".
user roger
topic foo/bar
topic read with blanks/in it

# This affects all clients.
pattern write $SYS/broker/connection/%c/state
"""


def acl(text: str) -> Acl:
    return Acl.parse(text.splitlines(), FILE)


def rights(text: str, *, user: str = "", client_id: str = "c1") -> Rights:
    return acl(text).rights(user=user, client_id=client_id)


def allowed(given: Rights, topic: str) -> set[Action]:
    """Return what may be done with a topic, or with a filter: that can be subscribed to only."""
    asked = TopicFilter.parse(topic)
    found = {Action.SUBSCRIBE} if given.may_subscribe(asked) else set()
    if b"+" not in asked.levels and b"#" not in asked.levels:
        found |= {Action.PUBLISH} if given.may_publish(topic.encode()) else set()
        found |= {Action.RECEIVE} if given.may_receive(topic.encode()) else set()
    return found


READ = {Action.SUBSCRIBE, Action.RECEIVE}
WRITE = {Action.PUBLISH}
SUBSCRIBE = {Action.SUBSCRIBE}
ALL = READ | WRITE
NONE: set[Action] = set()


def every_filter() -> list[TopicFilter]:
    """Return all filters of up to three levels of two words, one of which begins with $."""
    texts = [
        "/".join((*levels, *end))
        for count in range(4)
        for levels in product(("a", "$s", "+"), repeat=count)
        for end in ((), ("#",))
        if 0 < count + len(end) <= 3
    ]
    return [TopicFilter.parse(text) for text in texts]


def test_a_filter_covers_another_where_it_matches_all_that_the_other_matches() -> None:
    # A word that no filter has stands for all the others, and four levels for any more.
    topics = [
        "/".join(words).encode()
        for count in range(1, 5)
        for words in product(("a", "$s", "other", ""), repeat=count)
    ]
    matched = {
        each: {topic for topic in topics if topic and each.matches(topic)}
        for each in every_filter()
    }
    wrong = [
        (outer.text, inner.text)
        for outer, inner in product(matched, repeat=2)
        if covers(outer.levels, inner.levels) != (matched[inner] <= matched[outer])
    ]
    assert (len(matched), wrong) == (52, [])


@pytest.mark.parametrize(
    ("line", "actions"),
    [
        ("topic read a/b", READ),
        ("topic write a/b", WRITE),
        ("topic readwrite a/b", ALL),
        ("topic a/b", ALL),
        ("topic subscribe a/b", SUBSCRIBE),
        ("topic deny a/b", NONE),
        ("pattern read a/b", READ),
        ("pattern a/b", ALL),
        ("\t topic \t write \t a/b \t", WRITE),
        ("topic read +/b", READ),
        ("topic read a/b/#", READ),
        ("topic read a", NONE),
        ("topic read a/b/c", NONE),
        ("topic read A/b", NONE),
        ("# topic read a/b", NONE),
        ("#topic read a/b", NONE),
        ("", NONE),
    ],
)
def test_a_line_allows_what_it_says_and_the_rest_is_refused(
    line: str, actions: set[Action]
) -> None:
    assert allowed(rights(line), "a/b") == actions


def test_a_file_of_mosquitto_is_understood() -> None:
    nobody, roger, susan = (
        rights(MOSQUITTO, user=user, client_id="c1") for user in ("", "roger", "susan")
    )
    state, foreign = "$SYS/broker/connection/c1/state", "$SYS/broker/connection/c2/state"
    asked = ("$SYS/broker/uptime", "foo/bar", "with blanks/in it", state, foreign)
    assert [allowed(nobody, topic) for topic in asked] == [READ, NONE, NONE, ALL, READ]
    assert [allowed(roger, topic) for topic in asked] == [NONE, ALL, READ, WRITE, NONE]
    assert [allowed(susan, topic) for topic in asked] == [NONE, NONE, NONE, WRITE, NONE]


def test_a_section_is_for_its_user_whatever_the_client() -> None:
    text = "user a b\ntopic one\nuser alice\ntopic two\nuser a b\ntopic three"
    assert [
        [allowed(rights(text, user=user, client_id="a b"), topic) == ALL for topic in topics]
        for user, topics in (
            ("a b", ("one", "two", "three")),
            ("alice", ("one", "two", "three")),
            ("a", ("one", "two", "three")),
            ("", ("one", "two", "three")),
        )
    ] == [[True, False, True], [False, True, False], [False] * 3, [False] * 3]


def test_a_client_has_its_section_beside_that_of_its_user() -> None:
    text = "topic nobody\nclient panel\ntopic read p\nuser alice\ntopic write a"
    assert [
        [
            allowed(rights(text, user=user, client_id=client), topic)
            for topic in ("nobody", "p", "a")
        ]
        for user, client in (("", "panel"), ("alice", "panel"), ("alice", "c1"), ("panel", "c1"))
    ] == [[ALL, READ, NONE], [NONE, READ, WRITE], [NONE, NONE, WRITE], [NONE, NONE, NONE]]


def test_patterns_are_for_all_wherever_they_stand() -> None:
    text = "user alice\npattern read news/#\nclient c9\npattern write in/%u"
    assert [
        [allowed(rights(text, user=user), topic) for topic in ("news/1", "in/alice", "in/bob")]
        for user in ("", "alice", "bob")
    ] == [[READ, NONE, NONE], [READ, WRITE, NONE], [READ, NONE, WRITE]]


@pytest.mark.parametrize(
    "text",
    [
        "topic deny a/secret/#\ntopic a/#",
        "topic a/#\ntopic deny a/secret/#",
        "topic a/#\npattern deny a/secret/#",
        "pattern a/#\ntopic a/secret/x\npattern deny a/secret/#",
        "topic a/#\nclient c1\ntopic deny a/secret/#\ntopic a/secret/x",
        "pattern a/#\npattern deny +/secret/#",
    ],
)
def test_deny_wins_wherever_it_stands(text: str) -> None:
    given = rights(text)
    assert [allowed(given, topic) for topic in ("a/x", "a/secret", "a/secret/x")] == [
        ALL,
        NONE,
        NONE,
    ]


def test_a_subscription_is_allowed_where_one_line_covers_it() -> None:
    given = rights("topic read a/+/c\ntopic read a/x\ntopic read a/y\ntopic write w/#")
    assert [
        allowed(given, topic) == SUBSCRIBE for topic in ("a/+/c", "a/b/+", "a/+", "a/#", "w/+")
    ] == [True, False, False, False, False]


def test_a_subscription_beside_what_is_denied_is_allowed_and_cut_at_delivery() -> None:
    given = rights("topic read a/#\ntopic deny a/secret/#")
    assert [allowed(given, topic) for topic in ("a/#", "a/+/x")] == [SUBSCRIBE, SUBSCRIBE]
    assert [allowed(given, topic) for topic in ("a/secret/#", "a/secret/+")] == [NONE, NONE]
    assert [given.may_receive(topic) for topic in (b"a/b/x", b"a/secret/x")] == [True, False]


def test_subscribe_lets_ask_for_more_than_is_delivered() -> None:
    given = rights("topic subscribe #\ntopic read a/b")
    assert [allowed(given, topic) for topic in ("#", "a/b", "c", "$SYS/#")] == [
        SUBSCRIBE,
        READ,
        SUBSCRIBE,
        NONE,
    ]


def test_a_shared_subscription_is_checked_by_what_stands_behind_its_group() -> None:
    given = rights("topic read a/#\ntopic deny a/secret")
    assert [
        given.may_subscribe(TopicFilter.parse(f"$share/any group/{asked}"))
        for asked in ("a/+", "#", "b", "a/secret", "$SYS/#")
    ] == [True, False, False, False, False]


def test_wildcards_do_not_open_topics_that_begin_with_a_dollar() -> None:
    given = rights("topic #\ntopic +/broker/#\ntopic $own/#")
    asked = ("$SYS/broker/uptime", "$SYS/#", "$own/x", "x/$SYS", "$SYS")
    assert [allowed(given, topic) for topic in asked] == [NONE, NONE, ALL, ALL, NONE]


def test_names_stand_in_for_their_part_of_a_level() -> None:
    given = rights("pattern devices/%u-%c/%c/%u/+/#", user="u%c", client_id="c%u")
    assert [
        allowed(given, topic) for topic in ("devices/u%c-c%u/c%u/u%c/x/y", "devices/%u-%c/%c/%u/x")
    ] == [ALL, NONE]


@pytest.mark.parametrize("name", ["+", "#", "a+", "a#b", "a/b", "/", "x/#"])
def test_a_name_that_would_widen_a_filter_is_matched_by_no_pattern(name: str) -> None:
    text = "pattern u/%u/#\npattern c/%c/#\npattern read all/#"
    asked = ("u/a/x", "u/x", "u/a/b/x", f"c/{name.replace('#', '').replace('+', '')}/x", "c/a/x")
    for given in (rights(text, user=name, client_id=name), rights(text, client_id=name)):
        assert [allowed(given, topic) for topic in asked] == [NONE] * 5
        assert allowed(given, "all/x") == READ


@pytest.mark.parametrize("name", ["+", "#", "a+", "a#b", "a/b", "/", "$a/b"])
@pytest.mark.parametrize("mark", ["%u", "%c"])
def test_a_name_that_cannot_fill_a_deny_pattern_is_denied_all_that_any_name_is(
    name: str, mark: str
) -> None:
    text = f"pattern #\npattern $SYS/#\npattern deny keys/{mark}/private/#"
    given = rights(text, user=name, client_id=name)
    asked = ("keys", "keys/a", "keys/a/private", "keys/a/b/private/x", "keys/#", "keys/+/private")
    assert [allowed(given, topic) for topic in asked] == [NONE] * 6
    assert [allowed(given, topic) for topic in ("open/a", "$SYS/x")] == [ALL, ALL]


@pytest.mark.parametrize("pattern", ["%c/#", "$%c/x", "id-%c", "%c"])
def test_a_name_that_cannot_fill_the_first_level_of_a_deny_pattern_is_denied_everything(
    pattern: str,
) -> None:
    text = f"pattern #\npattern $SYS/#\npattern deny {pattern}\nclient a/b\ntopic own"
    asked = ("a", "a/b/x", "$SYS/x", "own", "#")
    assert [allowed(rights(text, client_id="a/b"), topic) for topic in asked] == [NONE] * 5
    assert allowed(rights(text, client_id="a"), "own") == ALL


def test_a_deny_pattern_holds_for_a_name_that_begins_with_a_dollar() -> None:
    given = rights("pattern $SYS/#\npattern a/#\npattern deny %c/#", client_id="$SYS")
    assert [allowed(given, topic) for topic in ("$SYS/x", "$SYS/#", "a/x")] == [NONE, NONE, ALL]


def test_a_deny_pattern_with_a_user_is_not_for_a_client_without_one() -> None:
    given = rights("pattern #\npattern deny keys/%u/#\npattern deny %u-%c", client_id="a/b")
    assert [allowed(given, topic) for topic in ("keys/a", "keys//x", "a")] == [ALL, ALL, ALL]


def test_a_name_does_not_open_topics_that_begin_with_a_dollar() -> None:
    text = "pattern %c/#\npattern %u/#\npattern x/%c\npattern $%c/#"
    given = rights(text, user="$SYS", client_id="$SYS")
    asked = ("$SYS/broker", "$SYS/#", "x/$SYS", "$$SYS/1")
    assert [allowed(given, topic) for topic in asked] == [NONE, NONE, ALL, ALL]


def test_a_client_without_a_user_has_no_patterns_that_mention_one() -> None:
    given = rights("pattern a/%u/b\npattern a%u\npattern %c%u", client_id="c")
    assert [allowed(given, topic) for topic in ("a//b", "a", "c")] == [NONE, NONE, NONE]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("users alice", "a line must begin with user, client, topic, pattern or #, got 'users'"),
        ("Topic a", "a line must begin with user, client, topic, pattern or #, got 'Topic'"),
        ("user", "expected a name after user"),
        ("client \t", "expected a name after client"),
        ("topic", "expected a topic filter, got ''"),
        ("topic deny", "expected a topic filter, got 'deny'"),
        ("pattern read ", "expected a topic filter, got 'read'"),
        ("topic rw a", "expected read, write, readwrite, subscribe or deny, got 'rw'"),
        ("topic two words", "expected read, write, readwrite, subscribe or deny, got 'two'"),
        ("topic read a/#/b", "# must be the last level, alone: filter='a/#/b'"),
        ("pattern a+%c", "+ must be alone in its level: filter='a+%c'"),
        (
            "topic read $share/g/a",
            "a rule must not have a shared filter: write the filter without $share/GROUP/",
        ),
        (
            "topic read a/%u",
            "%u and %c have a meaning in pattern lines only: write pattern instead of topic",
        ),
    ],
)
def test_a_wrong_line_is_named_with_its_file(line: str, complaint: str) -> None:
    with pytest.raises(UsageError) as caught:
        acl(f"# rules\nuser alice\n{line}\ntopic b")
    assert str(caught.value) == f"{complaint}: path=/etc/siltstone/acl line=3"


def test_rights_are_made_once_for_each_user_and_client() -> None:
    made = acl("pattern a/%c")
    first = made.rights(user="u", client_id="c")
    assert made.rights(user="u", client_id="c") is first
    assert made.rights(user="c", client_id="u") is not first


def test_of_too_many_rights_the_oldest_are_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acl_module, "RIGHTS_MAX", 2)
    made = acl("pattern a/%c")
    first, second = (made.rights(user="", client_id=each) for each in ("c1", "c2"))
    made.rights(user="", client_id="c3")
    assert made.rights(user="", client_id="c2") is second
    again = made.rights(user="", client_id="c1")
    assert (again is first, allowed(again, "a/c1")) == (False, ALL)
