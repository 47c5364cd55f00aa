"""Rewrites: rows that leave some tables for others, or for the same table with other columns.

    {"version": 1, "number": 4,
     "moved": {"plant_line_1": "plant"},       tables whose rows went to another one
     "open": {"number": 5, "batch": 77, "versions": {"plant": 12, "plant_line_2": 3},
              "moved": {…}, "rules": […], "before": […], "given_up": false,
              "changes": [{"table": "plant", "schema": …, "remove": […] or null, "add": […]}]}}

The files of a rewrite are written first. The entry `open` in this file then fixes the rewrite: each
table that it changes, in the order in which they are committed, one Delta transaction for each.
Until the entry is gone, readers use the versions that it names, so that they find each row once.
A rewrite that was interrupted is completed by the next job. One that was given up is undone: its
tables get these versions back, and `before` has the rules. The file is always replaced as a whole.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import PurePath
from typing import Any, Final

from siltstone.errors import CorruptionError, UsageError
from siltstone.fs.api import FileSystem
from siltstone.fs.publish import replace_file
from siltstone.pipeline.lake.files import MadeFile
from siltstone.pipeline.lake.rules import Rules, rules_from_json

REWRITE: Final = "rewrite.json"
VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TableChange:
    """The change of one table: files that it loses, files that it gets, and its columns.

    `remove` is None if the new files replace all others. `schema` is the Delta schema as JSON.
    """

    table: str
    schema: str
    remove: tuple[str, ...] | None
    add: tuple[MadeFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRewrite:
    """A rewrite that was started and has not ended; `batch` is the last batch before it.

    `before` has the rules that are used again if it is given up; None in a file without them.
    """

    number: int
    batch: int
    versions: Mapping[str, int]
    changes: tuple[TableChange, ...]
    rules: Rules
    moved: Mapping[str, str] = field(default_factory=dict)
    before: Rules | None = None
    given_up: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "number": self.number,
            "batch": self.batch,
            "versions": dict(self.versions),
            "moved": dict(self.moved),
            "rules": self.rules.to_json(),
            "before": None if self.before is None else self.before.to_json(),
            "given_up": self.given_up,
            "changes": [
                {
                    "table": change.table,
                    "schema": change.schema,
                    "remove": None if change.remove is None else list(change.remove),
                    "add": [asdict(file) for file in change.add],
                }
                for change in self.changes
            ],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrites:
    """The number of the last rewrite that has ended, the open one, and the tables that it left."""

    number: int = 0
    moved: Mapping[str, str] = field(default_factory=dict)
    open: OpenRewrite | None = None

    def target(self, table: str) -> str | None:
        """Return the table that the rows of a table went to, in the end."""
        seen = {table}
        while table in self.moved and self.moved[table] not in seen:
            table = self.moved[table]
            seen.add(table)
        return table if len(seen) > 1 else None

    @property
    def stage(self) -> tuple[int, bool]:
        """The number of the last rewrite, and whether the next one is open; both only grow."""
        return self.number, self.open is not None

    @property
    def versions(self) -> Mapping[str, int]:
        """The versions of tables that readers use instead of the newest."""
        return {} if self.open is None else self.open.versions

    def ended(self) -> Rewrites:
        """Return the state after the open rewrite. Tables that it fed are tables again."""
        assert self.open is not None
        if self.open.given_up:
            # Tables may have its number as that of a transaction, so it is not used again.
            return Rewrites(number=self.open.number, moved=self.moved)
        fed = {change.table for change in self.open.changes if change.add}
        moved = {table: to for table, to in self.moved.items() if table not in fed}
        return Rewrites(number=self.open.number, moved=moved | dict(self.open.moved))

    def encode(self) -> bytes:
        """Return the contents of the file."""
        content = {
            "version": VERSION,
            "number": self.number,
            "moved": dict(self.moved),
            "open": None if self.open is None else self.open.to_json(),
        }
        return json.dumps(content, indent=1).encode() + b"\n"


def read_rewrites(fs: FileSystem, lake: PurePath) -> Rewrites:
    """Return the rewrites of a lake; none at first. Raises: UsageError, CorruptionError."""
    path = lake / REWRITE
    if not fs.exists(path):
        return Rewrites()
    try:
        values = json.loads(fs.read(path))
        if values["version"] != VERSION:
            raise UsageError(
                f"unknown version {values['version']!r} of {path} (supported: {VERSION})"
            )
        return Rewrites(
            number=int(values["number"]),
            moved=dict(values["moved"]),
            open=None if values["open"] is None else _opened(values["open"], str(path)),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        raise CorruptionError(f"the rewrites cannot be read: {exc!r}", path=path) from exc


def write_rewrites(fs: FileSystem, lake: PurePath, rewrites: Rewrites) -> None:
    """Replace the file durably."""
    replace_file(fs, lake / REWRITE, rewrites.encode())


def _opened(values: Mapping[str, Any], name: str) -> OpenRewrite:
    return OpenRewrite(
        number=int(values["number"]),
        batch=int(values["batch"]),
        versions={table: int(version) for table, version in values["versions"].items()},
        moved=dict(values["moved"]),
        rules=rules_from_json(values["rules"], name),
        before=None if values.get("before") is None else rules_from_json(values["before"], name),
        given_up=bool(values.get("given_up", False)),
        changes=tuple(_change(change) for change in values["changes"]),
    )


def _change(values: Mapping[str, Any]) -> TableChange:
    removed: Sequence[str] | None = values["remove"]
    return TableChange(
        table=values["table"],
        schema=values["schema"],
        remove=None if removed is None else tuple(removed),
        add=tuple(MadeFile(**file) for file in values["add"]),
    )
