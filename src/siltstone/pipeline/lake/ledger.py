"""The ledger: the position up to which a database is in the lake, in one small file.

    {"version": 1, "identity": …, "batch": 12,
     "position": {"0": 1200},              rows before these serials are in the lake
     "slabs": {"0/1": 1180},               the number of these rows in each slab
     "open": {"batch": 13, "start": …, "stop": …, "rules": […]}}

A batch is opened here before its first table is committed. The entry fixes the batch: the rows
between two positions, and the rules. The tables are committed one by one, each in a transaction
with the number of the batch. A batch that was interrupted is therefore repeated, and a table that
has its files already does not receive them twice. The file is always replaced as a whole.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any, Final

from siltstone.errors import CorruptionError, UsageError
from siltstone.fs.api import FileSystem
from siltstone.fs.paths import StorePaths
from siltstone.fs.publish import create_directories, replace_file
from siltstone.pipeline.lake.rules import Rules, rules_from_json
from siltstone.scan.options import ACCEPT_LOSS
from siltstone.store.feed.position import Position
from siltstone.store.slab.identity import UNIDENTIFIED

VERSION: Final = 1
LEDGER: Final = "ledger.json"
Serials = Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenBatch:
    """A batch that was started and has not ended."""

    number: int
    start: Serials
    stop: Serials
    rules: Rules


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """The rows that are in the lake, and the open batch.

    The position has the identity of the database.
    """

    position: Position
    batch: int = 0
    slabs: Mapping[str, int] = field(default_factory=dict)
    open: OpenBatch | None = None

    @property
    def identity(self) -> str:
        """The identity of the database whose rows are in the lake."""
        return self.position.identity or UNIDENTIFIED

    @property
    def application(self) -> str:
        """The application id of this database in Delta transactions."""
        return f"siltstone-{self.identity}"

    def opened(self, start: Serials, stop: Serials, rules: Rules) -> Ledger:
        """Return a ledger with the next batch open."""
        batch = OpenBatch(number=self.batch + 1, start=start, stop=stop, rules=rules)
        return replace(self, open=batch)

    def closed(self, rows: Mapping[str, int]) -> Ledger:
        """Return a ledger in which the open batch has ended; rows are its row counts by slab."""
        assert self.open is not None
        slabs = dict(self.slabs)
        for slab, count in rows.items():
            slabs[slab] = slabs.get(slab, 0) + count
        return replace(
            self,
            batch=self.open.number,
            position=Position({**self.position.serials, **self.open.stop}, self.identity),
            slabs=slabs,
            open=None,
        )

    def encode(self) -> bytes:
        """Return the contents of the file."""
        content: dict[str, Any] = {
            "version": VERSION,
            "identity": self.identity,
            "batch": self.batch,
            "position": self.position.shards(),
            "slabs": dict(self.slabs),
            "open": None,
        }
        if self.open is not None:
            content["open"] = {
                "batch": self.open.number,
                "start": named(self.open.start),
                "stop": named(self.open.stop),
                "rules": self.open.rules.to_json(),
            }
        return json.dumps(content, indent=1).encode() + b"\n"


def lake_directory(data: PurePath, database: str) -> PurePath:
    """Return the directory of the tables of a database, given the data directory."""
    return StorePaths(data).lake(database)


def read_ledger(
    fs: FileSystem, directory: PurePath, identity: str, *, fails_on_loss: bool = True
) -> Ledger:
    """Return the ledger of a lake, or an empty one.

    The ledger of an earlier database of this name counts as none if losses are accepted.

    Raises: UsageError, CorruptionError.
    """
    path = directory / LEDGER
    if not fs.exists(path):
        return Ledger(position=Position({}, identity))
    try:
        values = json.loads(fs.read(path))
        if values["version"] != VERSION:
            raise UsageError(
                f"unknown version {values['version']!r} of {path} (supported: {VERSION})"
            )
        ledger = _decoded(values, str(path))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        raise CorruptionError(f"the ledger cannot be read: {exc!r}", path=path) from exc
    if ledger.identity != identity:
        if not fails_on_loss:
            return Ledger(position=Position({}, identity))
        raise UsageError(
            f"{directory} has the tables of an earlier database of this name, which was dropped: "
            f"rename or remove this directory, or {ACCEPT_LOSS} to read the present database only"
        )
    return ledger


def read_identity(fs: FileSystem, directory: PurePath) -> str | None:
    """Return the identity of the database whose rows a lake has; None without a ledger.

    Raises: CorruptionError.
    """
    path = directory / LEDGER
    if not fs.exists(path):
        return None
    try:
        return str(json.loads(fs.read(path))["identity"])
    except (ValueError, KeyError, TypeError, RecursionError) as exc:
        raise CorruptionError(f"the ledger cannot be read: {exc!r}", path=path) from exc


def write_ledger(fs: FileSystem, directory: PurePath, ledger: Ledger) -> None:
    """Replace the ledger durably."""
    create_directories(fs, directory)
    replace_file(fs, directory / LEDGER, ledger.encode())


def _decoded(values: Mapping[str, Any], name: str) -> Ledger:
    opened = values["open"]
    return Ledger(
        position=Position(_numbered(values["position"]), values["identity"]),
        batch=values["batch"],
        slabs=dict(values["slabs"]),
        open=None
        if opened is None
        else OpenBatch(
            number=opened["batch"],
            start=_numbered(opened["start"]),
            stop=_numbered(opened["stop"]),
            # An earlier version opened a batch without the key; its misfits were dead letters.
            rules=rules_from_json(
                [{"drift": "dead_letter"} | rule for rule in opened["rules"]], name
            ),
        ),
    )


def named(serials: Serials) -> dict[str, int]:
    """Return serials with the shards as text, for JSON."""
    return {str(shard): serial for shard, serial in sorted(serials.items())}


def _numbered(serials: Mapping[str, int]) -> dict[int, int]:
    if any(serial < 0 for serial in serials.values()):
        raise ValueError(f"negative serial in {serials!r}")
    return {int(shard): serial for shard, serial in serials.items()}
