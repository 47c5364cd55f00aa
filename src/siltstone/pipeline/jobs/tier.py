"""The tier job: copies rows of the store to tables of the lake, exactly once.

A batch is the rows between two positions. Tasks of Spark write its files. Then the job commits the
tables of the batch one after the other, and the ledger records that the batch has ended. A killed
run leaves files that no table names, or an open batch, which the next run completes first. Only
rows that are in the lake according to the ledger may be dropped from the store.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import PurePath
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import SparkSession

from siltstone.clock import Clock, SystemClock
from siltstone.errors import LockedError
from siltstone.fs.api import FileSystem
from siltstone.fs.paths import StorePaths
from siltstone.fs.posix import PosixFileSystem, absolute_path
from siltstone.pipeline.jobs.rewriting import Rewriter, begin_rewrites
from siltstone.pipeline.jobs.survey import Customs, survey
from siltstone.pipeline.jobs.tasks import (
    TASK_BYTES,
    Runner,
    TaskFailure,
    on_spark,
    settle,
    write_all,
)
from siltstone.pipeline.jobs.upkeep import (
    locked_batches,
    locked_files,
    locked_lake,
    remove_unused,
    tidy,
)
from siltstone.pipeline.lake.delta import (
    OpenTables,
    TableCompaction,
    add_files,
    content,
    ensure_table,
    last_batch,
    list_tables,
    refuse_overwritten,
    remove_torn_checkpoint,
    shorten_log,
    stored_files,
    sync_log,
)
from siltstone.pipeline.lake.files import (
    MadeFile,
    WriteTask,
    Written,
    by_table,
    dead_schema,
    for_each,
    partition_schema,
    rows_in,
    rule_schema,
)
from siltstone.pipeline.lake.ledger import (
    Ledger,
    OpenBatch,
    Serials,
    lake_directory,
    named,
    read_ledger,
    write_ledger,
)
from siltstone.pipeline.lake.merge import FAN_IN, MergeTask
from siltstone.pipeline.lake.names import DEAD_LETTER, OTHER, Content
from siltstone.pipeline.lake.payloads import Decoder
from siltstone.pipeline.lake.rules import RULES, Partition, Rules, TableRule, load_rules
from siltstone.pipeline.lake.tables.rewrite import Rewrites, read_rewrites
from siltstone.pipeline.lake.tables.versions import store_rules
from siltstone.scan.columns.schema import table_schema
from siltstone.scan.offsets import bounds_of
from siltstone.scan.options import ReadOptions
from siltstone.scan.survey import admit_from, find_database, plan_micro_batch
from siltstone.store.database import Database
from siltstone.store.directory import Store
from siltstone.store.slab.marks import write_tiered

# The columns of the rows that are looked at for rules.
_SURVEYED: Final = table_schema(("topic", "payload"))
_FILTERS_MAX: Final = 16
# Rows of larger tables stay there when their structure becomes a wider one.
MOVE_BYTES_MAX: Final = 1024 * 1024 * 1024
# The time between two checks of all tables, for old versions and finished partitions.
_SWEEP_SECONDS: Final = 3600.0
# The time of a sweep between two batches.
_SWEEP_ROUND_SECONDS: Final = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class TierSettings:
    """The settings of a tier job; `decode` has decoders by topic filter, for new structures."""

    path: str
    database: str = ""
    partition: Partition = "day"
    decode: Mapping[str, Decoder] = field(default_factory=dict)
    bytes_per_batch: int = 512 * 1024 * 1024
    rows_per_batch: int | None = None
    fails_on_loss: bool = True
    keep_hours: int = 168


@dataclass(frozen=True, slots=True, kw_only=True)
class TierStep:
    """The result of one batch, and the number of rows that are still waiting.

    `left_out` has the number of fields that stayed in the payload, for each table that is full.
    """

    batch: int
    rows: int
    dead: int
    files: int
    size_bytes: int
    tables: Mapping[str, int]
    waiting: int
    left_out: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TierReport:
    """The result of a run; tables have the number of rows added to them.

    `left_out` has, by table, the largest number of fields of a batch that are not columns.
    """

    database: str = ""
    batches: int = 0
    rows: int = 0
    dead: int = 0
    files: int = 0
    size_bytes: int = 0
    tables: Mapping[str, int] = field(default_factory=dict)
    left_out: Mapping[str, int] = field(default_factory=dict)

    def plus(self, step: TierStep) -> TierReport:
        """Return the report with one more step; its size does not depend on their number."""
        tables = Counter(self.tables) + Counter(step.tables)
        left_out = Counter(self.left_out) | Counter(step.left_out)
        return replace(
            self,
            batches=self.batches + 1,
            rows=self.rows + step.rows,
            dead=self.dead + step.dead,
            files=self.files + step.files,
            size_bytes=self.size_bytes + step.size_bytes,
            tables=dict(sorted(tables.items())),
            left_out=dict(sorted(left_out.items())),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Leaving:
    """Tables whose rows must be rewritten by some rules before the next batch."""

    tables: Sequence[str]
    rules: Rules


class TierJob:
    """Tiers one database; it holds the lock of the lake until it is closed."""

    def __init__(
        self,
        settings: TierSettings,
        run: Runner,
        *,
        fs: FileSystem | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._settings = settings
        self._run = run
        self._fs = fs or PosixFileSystem()
        self._clock = clock or SystemClock()
        self._path = absolute_path(settings.path)
        with ExitStack() as stack:
            store = stack.enter_context(Store(self._path, read_only=True, fs=self._fs))
            self.database: Database = find_database(store, settings.database)
            self.lake = lake_directory(self._path, self.database.name)
            stack.enter_context(locked_lake(self._fs, self.lake))
            self._ledger = read_ledger(self._fs, self.lake, self.database.identity)
            self._contents: dict[str, Content] = {}
            self._rewritten = 0
            self._opened = OpenTables(self._fs)
            self._rewriter = Rewriter(
                self._fs,
                self._clock,
                self.lake,
                application=self._ledger.application,
                run=run,
                opened=self._opened,
            )
            # The columns that each table has, as far as this job has needed them.
            self._fitting: dict[tuple[str, str], tuple[pa.Schema, pa.Schema]] = {}
            self._read_rules: tuple[bytes, Rules] | None = None
            # The number of files that were added to each table since it was last tidied.
            self._added: Counter[str] = Counter()
            self._swept_at: float | None = None
            # Tables that the sweep of this hour has not reached.
            self._sweeping: list[str] = []
            for name in list_tables(self._fs, self.lake):
                remove_torn_checkpoint(self._fs, self.lake / name)
            # If a table was overwritten, rows that are added now would be lost when the table is
            # restored.
            refuse_overwritten(self._fs, self.lake, opened=self._opened)
            # From now on the store keeps rows that are not in the lake yet.
            self._mark()
            self._closing = stack.pop_all()
        self._options = ReadOptions(
            path=str(self._path),
            database=self.database.name,
            filters=(),
            rows_per_batch=65_536,
            bytes_per_partition=TASK_BYTES,
            fails_on_loss=settings.fails_on_loss,
            accept_loss="tier with --ignore-loss, or fails_on_loss=False,",
        )

    def close(self) -> None:
        """Release the lock."""
        self._closing.close()

    def step(self) -> TierStep | None:
        """Tier one batch; return None if there are no rows to tier. Raises: SiltstoneError."""
        while True:
            with locked_batches(self._fs, self.lake):
                rewrites = self._rewrites()
                leaving: _Leaving | None = None
                if rewrites.open is None:
                    outcome = self._batch()
                    if not isinstance(outcome, _Leaving):
                        return outcome
                    leaving = outcome
            # The locks are taken in this order everywhere.
            with locked_files(self._fs, self.lake), locked_batches(self._fs, self.lake):
                # Another process may have held both locks in between, and may have been killed.
                if self._rewrites().stage != rewrites.stage:
                    continue
                if leaving is None:
                    # Rows that are added to a table of an open rewrite would not survive it.
                    self._rewriter.finish()
                else:
                    draft = self._rewriter.draft(leaving.tables, leaving.rules)
                    self._rewriter.complete(draft, self._ledger.batch)

    def _batch(self) -> TierStep | _Leaving | None:
        """Tier one batch, unless rows must leave tables before; None if there are no rows."""
        if self._ledger.open is not None:
            return self._repeat(self._ledger.open)
        span = self._next_span()
        if span is None:
            return None
        rules = self._rules_for(*span)
        if tables := self._leaving(rules):
            return _Leaving(tables=tables, rules=rules)
        batch, written = self._written(*span, rules)
        if tables := self._evolved(batch.rules):
            return _Leaving(tables=tables, rules=batch.rules)
        return self._tier(batch, written)

    def _rewrites(self) -> Rewrites:
        """Return the rewrites of the lake; after a new one, tables may have other columns."""
        rewrites = read_rewrites(self._fs, self.lake)
        if rewrites.number != self._rewritten:
            self._rewritten = rewrites.number
            self._contents.clear()
            self._fitting.clear()
        return rewrites

    def _repeat(self, batch: OpenBatch) -> TierStep:
        """Write a batch again that a killed job has left open, and finish it."""
        tasks = self._tasks(batch, settled=True, skip=self._tables_of(batch))
        return self._finish(batch, write_all(self._run, tasks))

    def _next_span(self) -> tuple[Serials, Serials] | None:
        """Return the start and the end of the next batch; None if there are no new rows."""
        extents = self.database.extents()
        bounds = bounds_of(extents)
        start = {
            shard: self._ledger.position.serials.get(shard, held.start)
            for shard, held in bounds.items()
        }
        sought = {
            shard: range(start[shard], held.stop)
            for shard, held in bounds.items()
            if start[shard] < held.stop
        }
        if not sought:
            return None
        admitted = admit_from(
            self.database,
            self._options,
            sought,
            rows_max=self._settings.rows_per_batch,
            bytes_max=self._settings.bytes_per_batch,
        )
        return start, {shard: admitted.ends.get(shard, serial) for shard, serial in start.items()}

    def _written(
        self, start: Serials, stop: Serials, rules: Rules
    ) -> tuple[OpenBatch, list[Written]]:
        """Write the files of a batch; its rules have the new fields."""
        batch = OpenBatch(number=self._ledger.batch + 1, start=start, stop=stop, rules=rules)
        rules, written = settle(self._run, self._tasks(batch), rules)
        return replace(batch, rules=rules), written

    def _evolved(self, rules: Rules) -> list[str]:
        """Return the tables with a column that needs another type, to be rewritten."""
        known = {rule.filter: rule for rule in self._known_rules().rules}
        tables: set[str] = set()
        for rule in rules.rules:
            kinds = {field.path: field.kind for field in rule.fields}
            before = known.get(rule.filter, rule).fields
            if any(kinds.get(field.path, field.kind) != field.kind for field in before):
                tables.add(rule.table)
        return sorted(tables & self._tables().keys())

    def _tier(self, batch: OpenBatch, written: Sequence[Written]) -> TierStep:
        """Open a batch in the ledger, and finish it."""
        store_rules(self._fs, self.lake, batch.rules, self._clock)
        self._prepare(batch, written)
        self._keep(self._ledger.opened(batch.start, batch.stop, batch.rules))
        return self._finish(batch, written)

    def tidy(self) -> list[TableCompaction]:
        """Merge small files that this job has added, and now and then remove old versions.

        The work of a call is bounded. Nothing is done while another process does it.

        Raises: RetryError, StorageFullError.
        """
        now = self._clock.monotonic()
        if self._swept_at is None or now - self._swept_at >= _SWEEP_SECONDS:
            self._swept_at = now
            self._sweeping = list_tables(self._fs, self.lake)
        due = [name for name, files in self._added.items() if files >= FAN_IN]
        if not due and not self._sweeping:
            return []
        try:
            with locked_files(self._fs, self.lake, wait=False):
                if read_rewrites(self._fs, self.lake).open is not None:
                    # The next step completes it.
                    return []
                due = list(dict.fromkeys([*due, *self._sweep(now + _SWEEP_ROUND_SECONDS)]))
                done = tidy(self._fs, self._clock, self.lake, due, self._merge, opened=self._opened)
                # A table with more to merge is looked at again by the next call.
                for name in set(due) - {item.table for item in done}:
                    del self._added[name]
                return done
        except LockedError:
            return []

    def _merge(self, tasks: Sequence[MergeTask]) -> list[MadeFile]:
        made: list[MadeFile] = []
        for outcome in self._run(tasks):
            if isinstance(outcome, TaskFailure):
                raise outcome.kind(outcome.sentence)
            assert isinstance(outcome, MadeFile), "a merge makes a file"
            made.append(outcome)
        return made

    def _sweep(self, until: float) -> list[str]:
        """Remove versions that are older than the settings want, and files without a version.

        Return the tables that were swept: as many as there is time for, and at least one.
        """
        swept: list[str] = []
        hours = self._settings.keep_hours
        while self._sweeping and (not swept or self._clock.monotonic() < until):
            name = self._sweeping.pop(0)
            # A table that was overwritten can be restored only while its old files exist.
            refuse_overwritten(self._fs, self.lake, [name], self._opened)
            shorten_log(self._fs, self.lake / name, hours=hours, opened=self._opened)
            remove_unused(self._fs, self._clock, self.lake, name, hours=hours, opened=self._opened)
            swept.append(name)
        return swept

    def waiting(self) -> int:
        """Return the number of serials of the store that are not in the lake."""
        bounds = bounds_of(self.database.extents())
        return sum(
            max(0, held.stop - self._ledger.position.serials.get(shard, held.start))
            for shard, held in bounds.items()
        )

    def _tasks(
        self, batch: OpenBatch, *, settled: bool = False, skip: frozenset[str] = frozenset()
    ) -> list[WriteTask]:
        """Return the tasks that write the files of a batch."""
        plan = plan_micro_batch(self.database, self._options, batch.start, batch.stop)
        return [
            WriteTask(
                portion=portion,
                options=self._options,
                rules=batch.rules.rules,
                lake=str(self.lake),
                batch=batch.number,
                skip=skip,
                settled=settled,
            )
            for portion in plan.partitions
        ]

    def _finish(self, batch: OpenBatch, written: Sequence[Written]) -> TierStep:
        """Commit the tables of a batch, then close the batch in the ledger."""
        files = [file for part in written for file in part.files]
        offsets = {"start": named(batch.start), "stop": named(batch.stop)}

        def add(item: tuple[str, list[MadeFile]]) -> None:
            table, made = item
            add_files(
                self._fs,
                self._clock,
                self.lake / table,
                made,
                application=self._ledger.application,
                batch=batch.number,
                offsets=offsets,
                opened=self._opened,
            )

        for_each(add, list(by_table(files).items()))
        for table, made in by_table(files).items():
            self._added[table] += len(made)
        slabs: dict[str, int] = {}
        for part in written:
            for slab, rows in part.slabs.items():
                slabs[slab] = slabs.get(slab, 0) + rows
        self._keep(self._ledger.closed(slabs))
        self._mark()
        tables = {table: rows_in(made) for table, made in by_table(files).items()}
        left_out = Counter(
            table for table, _ in {pair for part in written for pair in part.left_out}
        )
        return TierStep(
            batch=batch.number,
            rows=sum(slabs.values()),
            dead=tables.get(DEAD_LETTER, 0),
            files=len(files),
            size_bytes=sum(file.size_bytes for file in files),
            tables=tables,
            waiting=self.waiting(),
            left_out=dict(left_out),
        )

    def _prepare(self, batch: OpenBatch, written: Sequence[Written]) -> None:
        """Create or widen the tables of a batch, before the ledger opens the batch.

        Raises: UsageError if a rule does not fit its table; the batch is then not opened.
        """
        rules = {rule.filter: rule for rule in batch.rules.rules}
        wanted: dict[str, dict[str, tuple[pa.Schema, pa.Schema]]] = {}
        for table, name in dict.fromkeys(
            (file.table, file.rule) for part in written for file in part.files
        ):
            shape = dead_schema(), partition_schema("day")
            if table != DEAD_LETTER:
                rule = rules.get(name, TableRule(filter="#", table=table))
                shape = rule_schema(rule), partition_schema(rule.partition)
            if self._fitting.get((table, name)) != shape:
                wanted.setdefault(table, {})[name] = shape

        def ensure(item: tuple[str, dict[str, tuple[pa.Schema, pa.Schema]]]) -> None:
            table, shapes = item
            for columns, partition in shapes.values():
                ensure_table(
                    self._fs, self.lake / table, columns, partition, self._opened, self._clock
                )

        for_each(ensure, list(wanted.items()))
        for table, shapes in wanted.items():
            self._contents.setdefault(table, "rows")
            self._fitting |= {(table, name): shape for name, shape in shapes.items()}

    def _tables_of(self, batch: OpenBatch) -> frozenset[str]:
        """Return the tables that have their files of an open batch already, durably."""
        tables = {rule.table for rule in batch.rules.rules} | {DEAD_LETTER, OTHER}
        application = self._ledger.application
        having = frozenset(
            table
            for table in tables
            if last_batch(self._fs, self.lake / table, application, self._opened) >= batch.number
        )
        # A killed job may have committed a table without syncing the commit.
        for table in having:
            sync_log(self._fs, self.lake / table)
        return having

    def _rules_for(self, start: Serials, stop: Serials) -> Rules:
        """Return rules for all topics of a batch. Raises: UsageError."""
        slabs = {
            extent.slab
            for extent in self.database.extents()
            for shard in [extent.slab.shard]
            if max(extent.serials.start, start.get(shard, 0))
            < min(extent.serials.stop, stop.get(shard, 0))
        }
        known = self._known_rules()
        there = self._tables()
        known.refuse_tables(there, self.database.name)
        new = {
            info.pattern
            for info in self.database.structure()
            if info.slab in slabs and not known.has(info.pattern)
        }
        new |= {rule.filter for rule in known.rules if rule.decode == "auto"}
        if not new:
            return known
        taken = [
            self.database.name,
            *(name for name in there if there[name] != "rows"),
            *read_rewrites(self._fs, self.lake).moved,
        ]
        customs = Customs(
            decode=self._settings.decode, partition=self._settings.partition, taken=taken
        )
        # Many filters cost more than they save.
        filters = tuple(sorted(new)) if len(new) <= _FILTERS_MAX else ()
        options = replace(self._options, filters=filters)
        plan = plan_micro_batch(self.database, options, start, stop)
        rows = (
            batch
            for portion in plan.partitions
            for batch in portion.batches(self._fs, options, _SURVEYED)
        )
        return survey(rows, known, customs)

    def _leaving(self, rules: Rules) -> list[str]:
        """Return the tables that the rules do not feed any more, whose rows move."""
        fed = {rule.table for rule in rules.rules}
        left = {rule.table for rule in self._known_rules().rules if rule.learned} - fed
        there = self._tables()
        sizes = {
            table: sum(file.size_bytes for file in stored_files(self.lake / table, self._opened))
            for table in sorted(left)
            if table in there
        }
        return [table for table, size in sizes.items() if 0 < size <= MOVE_BYTES_MAX]

    def _known_rules(self) -> Rules:
        """Return the rules of the file."""
        begin_rewrites(self._fs, self.lake, self._clock, self._ledger)
        return self._load_rules()

    def _tables(self) -> dict[str, Content]:
        """Return the content of each table, which never changes."""
        for name in list_tables(self._fs, self.lake):
            if name not in self._contents:
                self._contents[name] = content(self.lake / name, self._opened)
        return self._contents

    def _load_rules(self) -> Rules:
        """Return the rules of the file, which is parsed again only when it has changed."""
        path = self.lake / RULES
        data = self._fs.read(path) if self._fs.exists(path) else b""
        if self._read_rules is None or self._read_rules[0] != data:
            self._read_rules = data, load_rules(self._fs, self.lake)
        return self._read_rules[1]

    def _keep(self, ledger: Ledger) -> None:
        write_ledger(self._fs, self.lake, ledger)
        self._ledger = ledger

    def _mark(self) -> None:
        directory = StorePaths(PurePath(self._path)).database(self.database.name)
        write_tiered(self._fs, directory, self._ledger.position.serials)


def tier(
    spark: SparkSession,
    path: str,
    *,
    progress: Callable[[TierStep], None] = lambda _: None,
    steps_max: int | None = None,
    **settings: Any,
) -> TierReport:
    """Tier all rows that the store has now, and return a report.

    Settings are those of TierSettings. Completed batches stay after an error.

    Raises: UsageError, LockedError, SlabDroppedError, RetryError.
    """
    steps: list[TierStep] = []
    job = TierJob(TierSettings(path=path, **settings), on_spark(spark))
    try:
        while steps_max is None or len(steps) < steps_max:
            step = job.step()
            if step is None:
                break
            steps.append(step)
            progress(step)
    finally:
        job.close()
    return report_of(job.database.name, steps)


def report_of(database: str, steps: Sequence[TierStep]) -> TierReport:
    """Sum up the steps of a run."""
    return reduce(TierReport.plus, steps, TierReport(database=database))
