"""Rules: the table of each topic, and the decoding of its payloads. Users may edit them.

The first rule whose filter matches a topic applies. Rules of users come before learned rules. Among
the learned rules, a word comes before a level that varies. A topic without a rule goes to the table
`other`, unchanged.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any, Final, Literal, cast

from siltstone.errors import InvalidTopicError, UsageError
from siltstone.fs.api import FileSystem
from siltstone.pipeline.lake.fields import FIELDS_MAX, KINDS, Field, Path, evolved, extended
from siltstone.pipeline.lake.names import (
    CONTENTS,
    DEAD_LETTER,
    OTHER,
    RESERVED_COLUMNS,
    Content,
    level_columns,
    plain_name,
)
from siltstone.pipeline.lake.payloads import DECODERS, DRIFTS, Decoder, Drift, text_columns
from siltstone.topic.grammar import TopicFilter
from siltstone.topic.matcher import Matcher

RULES: Final = "rules.toml"
Partition = Literal["day", "hour"]
PARTITIONS: Final[tuple[Partition, ...]] = ("day", "hour")
TITLE: Final = """\
# Which table the rows of a topic go to: the first rule whose filter matches.
#
#   filter     an MQTT topic filter          table    the name of the table
#   levels     a column for each + of the filter, in order
#   decode     json, cbor, msgpack, text, raw, or auto: chosen by the first payloads. A payload
#              that cannot be decoded goes to dead_letter
#   drift      what happens to a value that does not fit its column: rescue (the column is NULL,
#              and _rescued has the value), evolve (the column becomes wider), dead_letter (the
#              row goes there), or reject (tier stops)
#   partition  day or hour, when the table is made
#   fields     paths in the payload, with their columns and types
#   [[lake.table]] with filter and name is a short form of a rule with decode = "auto"
#   learned    made by `siltstone pipeline tier`; rules without it stand first, and win
#
# What was written stays where it is: a change holds for rows that are tiered from now on.
"""
# A surrogate pair in JSON escapes, or any other escape: an escaped backslash may precede text that
# looks like a surrogate pair.
_ESCAPES: Final = re.compile(r"\\(?:(ud[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2})|.)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRule:
    """The table and decoding of the topics of a filter; `levels` has a column for each +."""

    filter: str
    table: str
    levels: tuple[str, ...] = ()
    decode: Decoder = "raw"
    partition: Partition = "day"
    fields: tuple[Field, ...] = ()
    learned: bool = False
    drift: Drift = "rescue"

    def level_places(self) -> list[int]:
        """Return the indexes of the topic levels that become columns."""
        return [place for place, level in enumerate(self.filter.split("/")) if level == "+"]

    @property
    def is_full(self) -> bool:
        """Whether new fields stay in the payload."""
        return len(self.fields) >= FIELDS_MAX

    def with_fields(self, found: Sequence[tuple[Path, str]]) -> TableRule:
        """Return the rule with new fields; with `evolve`, a known one may have a wider type."""
        fields = extended(self.fields, found, self.taken())
        return replace(
            self, fields=evolved(fields, dict(found)) if self.drift == "evolve" else fields
        )

    def with_wanted(self) -> TableRule:
        """Return the rule with the types that are wanted."""
        fields = (
            replace(field, kind=field.wanted or field.kind, wanted="") for field in self.fields
        )
        return replace(self, fields=tuple(fields))

    def taken(self) -> list[str]:
        """Return the names that cannot be the column of a field."""
        return [*RESERVED_COLUMNS, *self.levels, *text_columns(self.decode)]

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "filter": self.filter,
            "table": self.table,
            "levels": list(self.levels),
            "decode": self.decode,
            "partition": self.partition,
            "learned": self.learned,
            "drift": self.drift,
            "fields": [
                {"path": list(field.path), "column": field.column, "type": field.kind}
                | ({"wanted": field.wanted} if field.wanted else {})
                for field in self.fields
            ],
        }


_FALLBACK: Final = TableRule(filter="#", table=OTHER)


class Rules:
    """Rules in the order in which they are tried."""

    def __init__(self, rules: Iterable[TableRule] = ()) -> None:
        ordered = sorted(rules, key=lambda rule: rule.learned)
        self.rules: tuple[TableRule, ...] = (*ordered,)
        self._matcher: Matcher | None = None
        self._known: dict[str, TableRule] = {}

    def find(self, topic: str) -> TableRule:
        """Return the rule of a topic."""
        rule = self._known.get(topic)
        if rule is None:
            places = self._places(topic)
            rule = self.rules[min(places)] if places else _FALLBACK
            self._known[topic] = rule
        return rule

    def has(self, topic: str) -> bool:
        """Return whether a topic, or every topic of a learned structure, has a rule."""
        return bool(self._places(topic))

    def _places(self, topic: str) -> list[int]:
        if self._matcher is None:
            self._matcher = Matcher()
            for place, item in enumerate(self.rules):
                self._matcher.put(TopicFilter.parse(item.filter).levels, place, place)
        return cast("list[int]", self._matcher.match(topic.encode()))

    def changed(self, rule: TableRule) -> Rules:
        """Return the rules with the one of this filter replaced."""
        return self.replaced([rule])

    def replaced(self, rules: Iterable[TableRule]) -> Rules:
        """Return the rules with those of some filters replaced."""
        by_filter = {rule.filter: rule for rule in rules}
        return Rules(by_filter.get(known.filter, known) for known in self.rules)

    def with_fields(self, found: Sequence[tuple[str, Path, str]]) -> Rules:
        """Return rules with the found fields added; found has filter, path and type."""
        by_filter: dict[str, list[tuple[Path, str]]] = {}
        for name, path, kind in found:
            by_filter.setdefault(name, []).append((path, kind))
        return self.replaced(
            rule.with_fields(by_filter[rule.filter])
            for rule in self.rules
            if rule.filter in by_filter
        )

    def with_wanted(self, tables: Collection[str]) -> Rules:
        """Return rules in which the fields of some tables have the types that are wanted."""
        return Rules(rule.with_wanted() if rule.table in tables else rule for rule in self.rules)

    def merged(self, later: Rules, rewritten: Collection[str] = ()) -> Rules:
        """Return these rules plus the additional rules and fields of `later`.

        Learned rules that `later` has replaced by others are left out. The rules of rewritten
        tables are those of `later`.
        """
        later_rules = {rule.filter: rule for rule in later.rules}
        wide = Rules(later.rules)
        kept = [
            _with_columns(rule, later_rules.pop(rule.filter, rule), rewritten)
            for rule in self.rules
            if not rule.learned or rule.filter in later_rules or not wide.has(rule.filter)
        ]
        return Rules(in_order([*kept, *later_rules.values()]))

    def effective(self) -> Rules:
        """Return the rules without learned ones that a rule of a user covers."""
        own = Rules(rule for rule in self.rules if not rule.learned)
        return Rules(rule for rule in self.rules if not rule.learned or not own.has(rule.filter))

    def kept(self) -> Rules:
        """Return the rules as those of a user, which never give way to wider ones."""
        return Rules(replace(rule, learned=False) for rule in self.rules)

    def refuse_tables(self, there: Mapping[str, Content], database: str) -> None:
        """Raise UsageError if the table of a rule cannot be used for rows.

        A table of other data cannot. Nor can the name of the database, which stands for all rows,
        or a name that differs from that of another table only in case.
        """
        called = {name.lower(): f"a table is called {name}" for name in there}
        called[database.lower()] = "it is the name of the database, which sql uses for all rows"
        for rule in self.rules:
            name = rule.table.lower()
            if rule.table not in there and name in called:
                why = called[name]
            elif there.get(rule.table, "rows") != "rows":
                why = f"it contains {CONTENTS[there[rule.table]]}"
            else:
                continue
            raise UsageError(
                f"{RULES}: choose another table than {rule.table} for {rule.filter!r}: {why}"
            )

    def to_json(self) -> list[dict[str, Any]]:
        """Return plain values."""
        return [rule.to_json() for rule in self.rules]

    def to_toml(self) -> str:
        """Return the text of the file that users edit."""
        return TITLE + "".join(_rule_toml(rule.to_json()) for rule in self.rules)


def in_order(rules: Sequence[TableRule]) -> list[TableRule]:
    """Return rules in the order in which they are tried: among learned ones, words before +."""
    own = [rule for rule in rules if not rule.learned]
    learned = [(_wildness(rule), rule) for rule in rules if rule.learned]
    return own + [rule for _, rule in sorted(learned, key=lambda item: item[0])]


def _wildness(rule: TableRule) -> tuple[list[bool], str]:
    return [level == "+" for level in rule.filter.split("/")], rule.filter


def _with_columns(rule: TableRule, later: TableRule, rewritten: Collection[str]) -> TableRule:
    """Return a rule with the additional fields of a later form of it."""
    if later.table in rewritten:
        return later
    paths = {field.path for field in rule.fields}
    columns = {field.column.lower() for field in rule.fields}
    new = [
        field
        for field in later.fields
        if field.path not in paths and field.column.lower() not in columns
    ]
    if rule.decode == "auto":
        rule = replace(rule, decode=later.decode)
    old = rule.fields
    if rule.drift == "evolve":
        old = evolved(old, {field.path: field.kind for field in later.fields})
    return replace(rule, fields=(*old, *new))


def load_rules(fs: FileSystem, lake: PurePath) -> Rules:
    """Read the rules of a lake, which has none before the first batch. Raises: UsageError."""
    path = lake / RULES
    if not fs.exists(path):
        return Rules()
    try:
        text = fs.read(path).decode()
    except UnicodeDecodeError as exc:
        raise UsageError(f"invalid TOML in {path}: {exc}") from exc
    return read_rules(text, str(path))


def read_rules(text: str, name: str) -> Rules:
    """Parse the file that users edit. Raises: UsageError."""
    try:
        values = _read_toml(text)
    except tomllib.TOMLDecodeError as exc:
        raise UsageError(f"invalid TOML in {name}: {exc}") from exc
    lake = values.get("lake", {})
    short = lake.get("table", []) if isinstance(lake, dict) else None
    is_list = isinstance(values.get("rule", []), list) and isinstance(short, list)
    if set(values) - {"rule", "lake"} or not is_list or set(lake) - {"table"}:
        raise UsageError(f"{name} must have [[rule]] and [[lake.table]] tables only")
    rules = rules_from_json([*map(_whole, short or ()), *values.get("rule", [])], name)
    known = {OTHER: OTHER}
    for rule in rules.rules:
        first = known.setdefault(rule.table.lower(), rule.table)
        if first != rule.table:
            raise UsageError(
                f"{name}: Spark does not distinguish upper and lower case; "
                f"rename one of the tables {first!r} and {rule.table!r}"
            )
    return rules


def _whole(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return a [[lake.table]] as a rule: the table is its name, and payloads are looked at."""
    rule = {"decode": "auto"} | dict(value)
    if "name" in rule:
        rule["table"] = rule.pop("name")
    return rule


def _read_toml(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        # Earlier versions wrote characters above U+FFFF as surrogate pairs, which are invalid in
        # TOML.
        whole = _ESCAPES.sub(_joined, text)
        if whole == text:
            raise
        return tomllib.loads(whole)


def _joined(escape: re.Match[str]) -> str:
    return str(json.loads(f'"{escape[0]}"')) if escape[1] else escape[0]


def rules_from_json(values: Sequence[Mapping[str, Any]], name: str) -> Rules:
    """Read plain values; a rule of a user replaces the learned rule of the same filter.

    Raises: UsageError.
    """
    rules = [_read_rule(value, f"{name}: rule {number}") for number, value in enumerate(values, 1)]
    written = {rule.filter for rule in rules if not rule.learned}
    rules = [rule for rule in rules if not (rule.learned and rule.filter in written)]
    filters = [rule.filter for rule in rules]
    if twice := sorted({item for item in filters if filters.count(item) > 1}):
        raise UsageError(f"{name} must not have two rules for one filter: filter={twice[0]!r}")
    return Rules(rules)


def _read_rule(value: Mapping[str, Any], name: str) -> TableRule:
    known = {"filter", "table", "levels", "decode", "partition", "learned", "drift", "fields"}
    if unknown := sorted(set(value) - known):
        raise UsageError(
            f"{name}: unknown key {unknown[0]!r} (supported: {', '.join(sorted(known))})"
        )
    try:
        parsed = TopicFilter.parse(str(value.get("filter", "")))
    except InvalidTopicError as exc:
        raise UsageError(f"{name}: {exc}") from exc
    table = value.get("table", "")
    if plain_name(str(table), "") != table or table.lower() in (DEAD_LETTER, ""):
        raise UsageError(
            f"{name}: the name of a table must have letters, digits and _ only: table={table!r}"
        )
    decode = _one_of(value.get("decode", "raw"), DECODERS, f"{name}: decode")
    partition = _one_of(value.get("partition", "day"), PARTITIONS, f"{name}: partition")
    levels = tuple(value.get("levels", level_columns(parsed.text.split("/"))))
    if len(levels) != parsed.levels.count(b"+"):
        raise UsageError(f"{name}: levels must have one name for each + of {parsed.text!r}")
    rule = TableRule(
        filter=parsed.text,
        table=table,
        levels=levels,
        decode=decode,
        partition=partition,
        fields=tuple(_read_field(item, name) for item in value.get("fields", [])),
        learned=bool(value.get("learned", False)),
        drift=_one_of(value.get("drift", "rescue"), DRIFTS, f"{name}: drift"),
    )
    _check_columns(rule, name)
    return rule


def _one_of(value: Any, known: Sequence[Any], name: str) -> Any:
    if value not in known:
        raise UsageError(f"{name} must be one of {', '.join(known)}: {value!r}")
    return value


def _read_field(value: Mapping[str, Any], name: str) -> Field:
    path = value.get("path")
    if isinstance(path, str):
        path = [path]
    if not isinstance(path, list) or not path or not all(isinstance(word, str) for word in path):
        raise UsageError(
            f'{name}: a field must have a path such as path = ["a", "b"], got {value!r}'
        )
    kind = _one_of(value.get("type"), tuple(KINDS), f"{name}: the type of a field")
    wanted = value.get("wanted", "")
    if wanted:
        _one_of(wanted, tuple(KINDS), f"{name}: the wanted type of a field")
    column = str(value.get("column", "_".join(path)))
    return Field(path=tuple(path), column=column, kind=kind, wanted=wanted)


def _check_columns(rule: TableRule, name: str) -> None:
    columns = [*rule.levels, *text_columns(rule.decode), *(field.column for field in rule.fields)]
    lower = [column.lower() for column in (*RESERVED_COLUMNS, *columns)]
    for column in columns:
        if plain_name(column, "") != column:
            raise UsageError(
                f"{name}: the name of a column must have letters, digits and _ only: "
                f"column={column!r}"
            )
        if lower.count(column.lower()) > 1:
            raise UsageError(f"{name}: the name of the column is in use already: column={column!r}")


def _rule_toml(value: Mapping[str, Any]) -> str:
    lines = ["", "[[rule]]"]
    lines += [f"{key} = {_toml(item)}" for key, item in value.items() if key != "fields"]
    if value["fields"]:
        lines.append("fields = [")
        for field in value["fields"]:
            inside = ", ".join(f"{key} = {_toml(item)}" for key, item in field.items())
            lines.append(f"    {{ {inside} }},")
        lines.append("]")
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    # TOML writes text, lists of text and booleans as JSON does, with two differences: it has no
    # surrogate pairs in escapes, and DEL must be escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
