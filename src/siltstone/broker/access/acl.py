"""The ACL file: the rights of clients to publish, subscribe and receive.

    topic read public/#             before the first section: clients without a user
    user alice
    topic readwrite plant/#         … readwrite is the default without an access word
    topic deny plant/keys/#
    client panel-1
    topic subscribe #               … may subscribe to all, receives what a read line allows
    pattern write meters/%c/up/#    in any place: all clients; %u is the user, %c the client id

The syntax is that of the acl_file of Mosquitto; `client` and `subscribe` are extensions.

Invariants: everything that no line allows is refused. A deny line has precedence over all other
lines, wherever it stands. A client gains nothing by its name. A pattern that allows is ignored for
a name that contains a wildcard or a slash, or that would make the topic begin with $. If a name
contains a wildcard or a slash, a pattern that denies covers all topics that begin with the levels
before the name. So it denies at least as much as for any other name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePath
from typing import Final, Self, TypeAlias

from siltstone.errors import UsageError
from siltstone.topic.grammar import TopicFilter

Levels: TypeAlias = tuple[bytes, ...]

RIGHTS_MAX: Final = 100_000


class Action(StrEnum):
    """The actions that need a right."""

    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"
    RECEIVE = "receive"


# The actions of each access word. An empty set denies all actions.
_ACCESS: Final[Mapping[str, frozenset[Action]]] = {
    "read": frozenset({Action.SUBSCRIBE, Action.RECEIVE}),
    "write": frozenset({Action.PUBLISH}),
    "readwrite": frozenset(Action),
    "subscribe": frozenset({Action.SUBSCRIBE}),
    "deny": frozenset(),
}
_DENY: Final = _ACCESS["deny"]
# Only space and tab separate words: other blanks may be part of a name.
_FIRST_WORD: Final = re.compile(r"[ \t]*([^ \t]*)[ \t]*(.*?)[ \t]*", re.DOTALL)
_PLACEHOLDER: Final = re.compile(rb"%[uc]")
_WIDENING: Final = re.compile(rb"[+#/]")


@dataclass(frozen=True, slots=True)
class AccessRule:
    """One line: the actions that it allows on the topics of a filter; no actions mean deny."""

    actions: frozenset[Action]
    levels: Levels


def covers(outer: Levels, inner: Levels) -> bool:
    """Return whether the filter `outer` matches every topic that `inner` matches.

    A topic is a filter without wildcards, so `inner` may be a topic.
    """
    # [MQTT-4.7.2-1]: a filter that starts with a wildcard matches no topic that starts with $.
    if inner[0].startswith(b"$") and outer[0] in (b"+", b"#"):
        return False
    count = len(inner)
    for index, level in enumerate(outer):
        # The wildcard # also matches the parent level: `a/#` covers `a`.
        if level == b"#":
            return True
        if index == count or inner[index] == b"#":
            # Every topic has at least one level, so `+/#` matches the same topics as `#`. No other
            # filter that ends in # does.
            return index == 0 and level == b"+" and outer[1:] == (b"#",)
        if level not in (inner[index], b"+"):
            return False
    return len(outer) == count


class _Filters:
    """The filters of some lines; those without wildcards are found with one look-up."""

    __slots__ = ("_topics", "_wild")

    def __init__(self, filters: Iterable[Levels]) -> None:
        every = dict.fromkeys(filters)
        self._wild = tuple(each for each in every if b"+" in each or b"#" in each)
        self._topics = every.keys() - set(self._wild)

    def __bool__(self) -> bool:
        return bool(self._topics or self._wild)

    def cover(self, levels: Levels) -> bool:
        """Return whether one of the filters covers a filter or topic."""
        if levels in self._topics:
            return True
        for each in self._wild:  # noqa: SIM110 - a generator is twice as slow, for every message
            if covers(each, levels):
                return True
        return False


class _RuleSet:
    """The rules of one section, by action; clients share it."""

    __slots__ = ("allowed", "denied")

    def __init__(self, rules: Sequence[AccessRule]) -> None:
        self.denied = _Filters(rule.levels for rule in rules if not rule.actions)
        self.allowed = {
            action: _Filters(rule.levels for rule in rules if action in rule.actions)
            for action in Action
        }


class Rights:
    """The rights of one client; `Acl.rights` creates it."""

    __slots__ = ("_denied", "_publish", "_receive", "_subscribe")

    def __init__(self, sets: Sequence[_RuleSet]) -> None:
        self._denied = tuple(rules.denied for rules in sets if rules.denied)
        self._publish, self._subscribe, self._receive = (
            tuple(rules.allowed[action] for rules in sets if rules.allowed[action])
            for action in (Action.PUBLISH, Action.SUBSCRIBE, Action.RECEIVE)
        )

    def may_publish(self, topic: bytes) -> bool:
        return self._allow(self._publish, tuple(topic.split(b"/")))

    def may_receive(self, topic: bytes) -> bool:
        return self._allow(self._receive, tuple(topic.split(b"/")))

    def may_subscribe(self, topic_filter: TopicFilter) -> bool:
        """Return whether one line allows the whole filter, and no line denies the whole filter.

        If a denied filter overlaps it in part, `may_receive` decides for each topic.
        """
        return self._allow(self._subscribe, topic_filter.levels)

    def _allow(self, allowed: tuple[_Filters, ...], levels: Levels) -> bool:
        for denied in self._denied:
            if denied.cover(levels):
                return False
        for each in allowed:  # noqa: SIM110 - as above
            if each.cover(levels):
                return True
        return False


class Acl:
    """The rules of the ACL file, as read once; only one thread uses it."""

    def __init__(
        self,
        *,
        users: Mapping[str, Sequence[AccessRule]],
        clients: Mapping[str, Sequence[AccessRule]],
        patterns: Sequence[AccessRule],
    ) -> None:
        self._users = {name: _RuleSet(rules) for name, rules in users.items()}
        self._clients = {name: _RuleSet(rules) for name, rules in clients.items()}
        self._for_all = _RuleSet([rule for rule in patterns if not _names_in(rule)])
        self._patterns = [rule for rule in patterns if _names_in(rule)]
        self._rights: dict[tuple[str, str], Rights] = {}

    @classmethod
    def parse(cls, lines: Sequence[str], path: PurePath) -> Self:
        """Parse the lines of an ACL file. Raises: UsageError, which names file and line."""
        users: dict[str, list[AccessRule]] = {}
        clients: dict[str, list[AccessRule]] = {}
        patterns: list[AccessRule] = []
        # The lines before the first section are for clients without a user.
        section = users.setdefault("", [])
        for number, line in enumerate(lines, 1):
            keyword, rest = _first_word(line)
            try:
                match keyword:
                    case "user":
                        section = users.setdefault(_name(keyword, rest), [])
                    case "client":
                        section = clients.setdefault(_name(keyword, rest), [])
                    case "topic":
                        section.append(_topic_rule(rest))
                    case "pattern":
                        patterns.append(_rule(rest))
                    case _ if keyword and not keyword.startswith("#"):
                        raise UsageError(
                            f"a line must begin with user, client, topic, pattern or #, got "
                            f"{keyword!r}"
                        )
            except UsageError as exc:
                raise UsageError(f"{exc}: path={path} line={number}") from exc
        return cls(users=users, clients=clients, patterns=patterns)

    def rights(self, *, user: str, client_id: str) -> Rights:
        """Return the rights of a client, from a cache; `user` is "" for a client without one."""
        key = (user, client_id)
        known = self._rights.get(key)
        if known is None:
            if len(self._rights) >= RIGHTS_MAX:
                del self._rights[next(iter(self._rights))]
            known = self._rights[key] = Rights(self._sets_of(user, client_id))
        return known

    def _sets_of(self, user: str, client_id: str) -> list[_RuleSet]:
        """Return the rules of a client; none if a pattern denies everything."""
        sets = [self._for_all]
        if user in self._users:
            sets.append(self._users[user])
        if client_id in self._clients:
            sets.append(self._clients[client_id])
        if self._patterns:
            rules = _filled(self._patterns, {b"%u": user, b"%c": client_id})
            if AccessRule(_DENY, ()) in rules:
                return []
            sets.append(_RuleSet(rules))
        return sets


def _first_word(text: str) -> tuple[str, str]:
    """Split after the first word; the rest, a name or a filter, may contain blanks."""
    found = _FIRST_WORD.fullmatch(text)
    assert found is not None
    return found[1], found[2]


def _name(keyword: str, rest: str) -> str:
    if not rest:
        raise UsageError(f"expected a name after {keyword}")
    return rest


def _rule(rest: str) -> AccessRule:
    """Parse `[access] filter`; the access word is optional if the filter contains no blank."""
    first, text = _first_word(rest)
    if not text:
        # Otherwise `topic deny` without a filter would allow the topic named deny.
        if not first or first in _ACCESS:
            raise UsageError(f"expected a topic filter, got {rest!r}")
        first, text = "readwrite", first
    if first not in _ACCESS:
        raise UsageError(f"expected read, write, readwrite, subscribe or deny, got {first!r}")
    parsed = TopicFilter.parse(text)
    if parsed.group is not None:
        raise UsageError(
            "a rule must not have a shared filter: write the filter without $share/GROUP/"
        )
    return AccessRule(_ACCESS[first], parsed.levels)


def _topic_rule(rest: str) -> AccessRule:
    rule = _rule(rest)
    if _names_in(rule):
        raise UsageError(
            "%u and %c have a meaning in pattern lines only: write pattern instead of topic"
        )
    return rule


def _names_in(rule: AccessRule) -> set[bytes]:
    """Return which of %u and %c a rule mentions."""
    return {name for level in rule.levels for name in _PLACEHOLDER.findall(level)}


def _filled(patterns: Iterable[AccessRule], names: Mapping[bytes, str]) -> list[AccessRule]:
    """Return the patterns with %u and %c replaced.

    If a name cannot fill a pattern, one that allows is left out, and one that denies becomes wider.
    A rule without levels denies everything.
    """
    encoded = {key: name.encode(errors="surrogatepass") for key, name in names.items()}
    given = {key: name for key, name in encoded.items() if name}
    usable = {key: name for key, name in given.items() if not _WIDENING.search(name)}
    rules = []
    for rule in patterns:
        mentioned = _names_in(rule)
        if mentioned - given.keys():
            continue
        if mentioned - usable.keys():
            if rule.actions == _DENY:
                rules.append(AccessRule(_DENY, _widened(rule.levels, usable)))
            continue
        levels = tuple(
            _PLACEHOLDER.sub(lambda found: usable[found[0]], level) for level in rule.levels
        )
        # A client named $SYS must not get the topics of the broker from `pattern read %c/#`.
        if levels[0][:1] == b"$" != rule.levels[0][:1] and rule.actions != _DENY:
            continue
        rules.append(AccessRule(rule.actions, levels))
    return rules


def _widened(levels: Levels, usable: Mapping[bytes, bytes]) -> Levels:
    """Return the levels of a pattern before the first name that cannot be filled in, and #.

    Empty if there are none before it: no filter matches all topics, because # does not match those
    that begin with $.
    """
    before: list[bytes] = []
    for level in levels:
        if set(_PLACEHOLDER.findall(level)) - usable.keys():
            break
        before.append(_PLACEHOLDER.sub(lambda found: usable[found[0]], level))
    return (*before, b"#") if before else ()
