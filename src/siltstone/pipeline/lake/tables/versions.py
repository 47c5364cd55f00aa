"""Versions of the schema of a lake: a copy of `rules.toml` for each change of it.

    schemas/00000007.toml     # version 7 of 2026-01-31T12:00:00Z
                              [[rule]] …

A version is stored before `rules.toml` is replaced, so the newest version is the file, or the file
that a crash kept from being written. A change by hand becomes a version together with the next
change.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import PurePath
from typing import Final

from siltstone.clock import Clock
from siltstone.errors import NotFoundError, UsageError
from siltstone.fs.api import FileSystem
from siltstone.fs.publish import create_directories, remove_file, replace_file
from siltstone.pipeline.lake.fields import KINDS
from siltstone.pipeline.lake.rules import RULES, Rules, load_rules, read_rules

SCHEMAS: Final = "schemas"
# Older versions are removed.
VERSIONS_MAX: Final = 200
_SUFFIX: Final = ".toml"
# The columns of each table, with the path of the field and the type.
Columns = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaVersion:
    """A version: its number, the time of its change, and the rules."""

    number: int
    time: str
    rules: Rules


def store_rules(
    fs: FileSystem,
    lake: PurePath,
    rules: Rules,
    clock: Clock,
    *,
    rewritten: Collection[str] = (),
) -> None:
    """Add new rules and fields to the file, durably, and keep changes that users made meanwhile."""
    there = load_rules(fs, lake)
    if rules.rules == there.rules:
        return
    merged = there.merged(rules, rewritten)
    if merged.rules != there.rules:
        replace_rules(fs, lake, merged, clock)


def replace_rules(fs: FileSystem, lake: PurePath, rules: Rules, clock: Clock) -> int:
    """Replace the rules, durably; return the number of the new version."""
    text = rules.to_toml()
    number = _store(fs, lake, text, clock)
    replace_file(fs, lake / RULES, text.encode())
    _trim(fs, lake)
    return number


def keep_rules(fs: FileSystem, lake: PurePath, clock: Clock) -> int:
    """Store the file as it is, which users may have changed; return the number of the version."""
    return _store(fs, lake, fs.read(lake / RULES).decode(), clock)


def _store(fs: FileSystem, lake: PurePath, text: str, clock: Clock) -> int:
    number = max(version_numbers(fs, lake), default=0) + 1
    now = datetime.fromtimestamp(clock.now_us() / 1_000_000, UTC)
    time = now.isoformat(timespec="seconds").replace("+00:00", "Z")
    create_directories(fs, lake / SCHEMAS)
    replace_file(fs, _place(lake, number), f"# version {number} of {time}\n{text}".encode())
    return number


def _trim(fs: FileSystem, lake: PurePath) -> None:
    for old in version_numbers(fs, lake)[:-VERSIONS_MAX]:
        remove_file(fs, _place(lake, old))


def version_numbers(fs: FileSystem, lake: PurePath) -> list[int]:
    """Return the numbers of the versions that exist, in order."""
    if not fs.exists(lake / SCHEMAS):
        return []
    names = [PurePath(entry.name) for entry in fs.list(lake / SCHEMAS)]
    return sorted(
        int(name.stem) for name in names if name.suffix == _SUFFIX and name.stem.isdecimal()
    )


def read_version(fs: FileSystem, lake: PurePath, number: int) -> SchemaVersion:
    """Return a version. Raises: NotFoundError, UsageError."""
    if number not in (there := version_numbers(fs, lake)):
        known = f"{there[0]} to {there[-1]}" if there else "none"
        raise NotFoundError(f"unknown version {number} of the schema (found: {known})")
    path = _place(lake, number)
    text = fs.read(path).decode()
    time = text.partition("\n")[0].rpartition(" of ")[2]
    return SchemaVersion(number=number, time=time, rules=read_rules(text, str(path)))


def _place(lake: PurePath, number: int) -> PurePath:
    return lake / SCHEMAS / f"{number:08}{_SUFFIX}"


def columns_by_table(rules: Rules) -> Columns:
    """Return the columns of fields by table, each with its path and type."""
    found: dict[str, dict[str, str]] = {}
    for rule in rules.rules:
        columns = found.setdefault(rule.table, {})
        for field in rule.fields:
            wanted = f", wanted {field.wanted}" if field.wanted else ""
            columns[field.column] = f"{field.kind}{wanted} from {'.'.join(field.path)}"
    return found


def differences(one: Columns, other: Columns) -> list[str]:
    """Return what must change in one schema to get the other, a line for each change."""
    lines = [f"- table {table}" for table in one if table not in other]
    for table, columns in other.items():
        if table not in one:
            lines.append(f"+ table {table}")
        before = one.get(table, {})
        lines += [f"- {table}.{name} {before[name]}" for name in before if name not in columns]
        for name, text in columns.items():
            if name not in before:
                lines.append(f"+ {table}.{name} {text}")
            elif before[name] != text:
                lines.append(f"~ {table}.{name} {before[name]} -> {text}")
    return lines


def want_type(
    fs: FileSystem, lake: PurePath, clock: Clock, *, table: str, column: str, kind: str
) -> int:
    """Note the type that a column gets when its table is rewritten; return the version.

    Raises: NotFoundError, UsageError.
    """
    if kind not in KINDS:
        raise UsageError(f"unknown type {kind!r} (supported: {', '.join(KINDS)})")
    rules = load_rules(fs, lake)
    own = [rule for rule in rules.rules if rule.table == table]
    if not own:
        tables = ", ".join(sorted({rule.table for rule in rules.rules})) or "none"
        raise NotFoundError(f"no rule has a table {table!r} (found: {tables})")
    columns = {field.column for rule in own for field in rule.fields}
    if column not in columns:
        there = ", ".join(sorted(columns)) or "none"
        raise NotFoundError(f"table {table} has no column {column!r} of a field (found: {there})")
    changed = [
        replace(
            rule,
            fields=tuple(
                replace(field, wanted="" if kind == field.kind else kind)
                if field.column == column
                else field
                for field in rule.fields
            ),
        )
        for rule in own
    ]
    return replace_rules(fs, lake, rules.replaced(changed), clock)
