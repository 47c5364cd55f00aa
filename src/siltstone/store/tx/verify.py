"""Check every invariant of a key-value database, without changing anything.

The log and the files belong to RocksDB and have checksums of their own: everything is read, so each
checksum is verified. The data in them is checked for consistency: slabs against families, rows
against the learned structure, counters against each other. Damage is only reported here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

from siltstone.errors import CorruptionError, InvalidTopicError
from siltstone.fs.api import FileSystem
from siltstone.store.kv.api import DEFAULT_FAMILY, Engine, EngineOpener
from siltstone.store.kv.keys import (
    STATE_KEY,
    TIME_BYTES,
    TIME_END,
    place_of,
    serial_in,
    stream_of,
    time_of,
    timestamp_in,
    varying_of,
)
from siltstone.store.kv.slab import KeyValueSlab, topic_in
from siltstone.store.kv.wal import check_logs
from siltstone.store.log.check.findings import Finding, Severity
from siltstone.store.log.check.verify import shard_problems
from siltstone.store.slab.manifest import SlabId, SlabRecord, SlabState
from siltstone.store.tx import catalog
from siltstone.store.tx.catalog import ShardState
from siltstone.store.tx.commit.changes import (
    CHANGES_FAMILY,
    changes_key,
    decode_changes,
    head_of,
)
from siltstone.store.tx.settings import KeyValueSettings
from siltstone.topic.grammar import check_topic

_CHUNK: Final = 4096
# After every key: no stream and no topic has these bytes.
_END: Final = b"\xff" * 16
# The number of bad rows of a slab that are reported one by one.
_TOLD_MAX: Final = 10
_STREAM_BYTES: Final = 8
_STATE_BYTES: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyValueReport:
    """The findings, and how much was checked."""

    findings: tuple[Finding, ...]
    slabs: int
    rows: int
    bytes: int

    @property
    def damaged(self) -> bool:
        """Whether there is a finding other than a note."""
        return any(finding.severity == "damage" for finding in self.findings)


def verify_keyvalue(
    fs: FileSystem, directory: PurePath, open_engine: EngineOpener
) -> KeyValueReport:
    """Check the key-value database in this directory; the engine is opened for reading.

    Raises: LockedError, DiskError.
    """
    check = _Check(directory)
    with check.telling():
        check_logs(fs, directory)
        with closing(open_engine(directory)) as engine:
            check.run(engine)
            size_bytes = engine.size_bytes()
        return check.report(size_bytes)
    return check.report(0)


class _Telling:
    """A context that turns a CorruptionError into a finding."""

    def __init__(self, tell: Callable[[CorruptionError], None]) -> None:
        self._tell = tell

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, CorruptionError):
            self._tell(error)
            return True
        return False


class _Check:
    """One pass over a database."""

    def __init__(self, directory: PurePath) -> None:
        self._directory = directory
        self._findings: list[Finding] = []
        self._slabs = 0
        self._rows = 0

    def telling(self) -> _Telling:
        """Return a context that turns a CorruptionError into a finding."""
        return _Telling(self._damaged)

    def report(self, size_bytes: int) -> KeyValueReport:
        """Return the report."""
        return KeyValueReport(
            findings=tuple(self._findings), slabs=self._slabs, rows=self._rows, bytes=size_bytes
        )

    def run(self, engine: Engine) -> None:
        """Check the catalog, then the rows of every slab."""
        if not catalog.is_created(engine):
            self._find("the database has never been used", "note")
            return
        settings = catalog.read_settings(engine)
        records = catalog.read_slabs(engine)
        states = {shard: catalog.read_state(engine, shard) for shard in range(settings.shards)}
        for shard in range(settings.shards):
            of_shard = [record for slab, record in records.items() if slab.shard == shard]
            for problem in shard_problems(shard, of_shard):
                self._find(problem)
        for slab in records:
            if slab.shard not in states:
                self._find(f"slab {slab} belongs to an unknown shard: shards={settings.shards}")
        for problem in catalog.id_problems(engine, states):
            self._find(problem)
        self._families(engine, records)
        if CHANGES_FAMILY in engine.families():
            with self.telling():
                for problem in _change_problems(engine, states):
                    self._find(problem)
        for record in records.values():
            if record.shard in states and catalog.family_of(record.id) in engine.families():
                with self.telling():
                    self._slab(engine, record, settings, states[record.shard])

    def _families(self, engine: Engine, records: dict[SlabId, SlabRecord]) -> None:
        named = {catalog.family_of(slab) for slab in records}
        there = {*engine.families()} - {DEFAULT_FAMILY, CHANGES_FAMILY}
        for family in sorted(named - there):
            self._find(f"the rows of slab {family.replace('.', '/')} are missing")
        for family in sorted(there - named):
            self._find(
                f"column family {family} belongs to a dropped slab; the next start removes it",
                "note",
            )

    def _slab(
        self, engine: Engine, record: SlabRecord, settings: KeyValueSettings, state: ShardState
    ) -> None:
        slab, _ = catalog.open_slab(engine, record.id, settings)
        self._slabs += 1
        bad = 0
        for problem in _row_problems(slab, self._count):
            bad += 1
            if bad <= _TOLD_MAX:
                self._find(f"slab {record.id}: {problem}")
        if bad > _TOLD_MAX:
            self._find(f"slab {record.id}: {bad - _TOLD_MAX} more rows are damaged")
        for problem in _state_problems(engine, slab, record, state):
            self._find(f"slab {record.id}: {problem}")

    def _count(self) -> None:
        self._rows += 1

    def _damaged(self, error: CorruptionError) -> None:
        self._findings.append(
            Finding(path=self._directory, offset=error.offset, problem=error.reason)
        )

    def _find(self, problem: str, severity: Severity = "damage") -> None:
        self._findings.append(
            Finding(path=self._directory, offset=0, problem=problem, severity=severity)
        )


def _state_problems(
    engine: Engine, slab: KeyValueSlab, record: SlabRecord, state: ShardState
) -> Iterator[str]:
    """Yield the problems of the counters that a slab has beside its rows."""
    stored = engine.get(slab.family, STATE_KEY) or b""
    if len(stored) not in (0, _STATE_BYTES):
        yield "its counters are damaged"
        return
    serial, timestamp_us = serial_in(stored), timestamp_in(stored)
    current = record.state is SlabState.CURRENT
    if serial > state.serial or (current and stored and serial != state.serial):
        yield f"its last serial does not match its shard: serial={serial} shard={state.serial}"
    if timestamp_us > state.timestamp_us:
        yield f"its last time is after that of its shard: {timestamp_us} > {state.timestamp_us}"


def _change_problems(engine: Engine, states: dict[int, ShardState]) -> Iterator[str]:
    """Yield the problems of the changes that are kept for feeds. Raises: CorruptionError."""
    view = engine.view(CHANGES_FAMILY)
    try:
        for shard, state in states.items():
            known = catalog.read_changes(engine, shard)
            if known is not None and known.serial > state.serial:
                yield f"the changes of shard {shard} are after its last commit"
            stop = 0
            start = changes_key(shard, 0)
            while items := view.items(start, changes_key(shard + 1, 0), 1):
                key, record = items[0]
                head = head_of(key, record)
                if (
                    head.first < stop
                    or len(decode_changes(record).topics) != head.stop - head.first
                ):
                    yield f"the changes of shard {shard} are out of order: change={head.first}"
                stop = head.stop
                start = key + b"\x00"
            end = 0 if known is None else known.next_number
            if stop > end:
                yield f"the changes of shard {shard} go beyond their end: change={stop} end={end}"
    finally:
        view.release()


def _row_problems(slab: KeyValueSlab, count: Callable[[], None]) -> Iterator[str]:
    """Yield the problems of rows, and count all rows."""
    view = slab.view()
    try:
        start = b""
        while items := view.items(start, _END, _CHUNK):
            for key, _ in items:
                if key != STATE_KEY:
                    count()
                    problem = _row_problem(slab, key)
                    if problem:
                        yield f"{problem}: key={key.hex()}"
            start = items[-1][0] + b"\x00"
    finally:
        view.release()


def _row_problem(slab: KeyValueSlab, key: bytes) -> str:
    """Return the problem of a row, "" if there is none."""
    timed = slab.timed
    if len(key) < _STREAM_BYTES + 1 + (TIME_BYTES if timed else 0):
        return "a key is too short"
    place = place_of(key, timed)
    if place[-1:] != b"\x00":
        return "a key does not contain a whole topic"
    if time_of(key, timed) >= TIME_END:
        return "a row has an invalid time"
    stream = slab.stream(stream_of(key))
    if stream is None:
        return "a row belongs to an unknown stream"
    varying = varying_of(key, timed)
    words = varying.split(b"/") if stream.varying_count or varying else []
    if len(words) != stream.varying_count:
        return "a row does not match its stream"
    topic = topic_in(stream, varying)
    try:
        check_topic(topic)
    except InvalidTopicError:
        return "a row has an invalid topic"
    if slab.place(topic) != place:
        return "the key of a row does not match its topic"
    return ""
