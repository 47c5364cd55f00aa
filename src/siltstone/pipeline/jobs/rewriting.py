"""Rewriting: the rows of tables are decoded again from their payloads, by the current rules.

The new files are written beside the tables. Then each table is changed by one Delta transaction:
it loses its old files and gets the new ones. Rows whose rules name another table go there. Rows in
`dead_letter` that were meant for a table are decoded again with it. `rewrite.json` fixes a rewrite
before the first transaction, so that a killed one is completed or given up, and readers find each
row once.

The long part, reading and writing files, needs the lock of the files only. A job that adds rows
goes on meanwhile. The caller then takes the lock of the batches: rows that were added meanwhile
are few.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Final

import pyarrow as pa
from deltalake import Schema

from siltstone.clock import Clock, SystemClock
from siltstone.errors import NotFoundError, RetryError, UsageError
from siltstone.fs.api import FileSystem
from siltstone.fs.posix import PosixFileSystem, absolute_path
from siltstone.pipeline.jobs.tasks import TASK_BYTES, Runner, run_here, settle
from siltstone.pipeline.jobs.upkeep import locked_batches, locked_files
from siltstone.pipeline.lake.delta import (
    Opener,
    content,
    ensure_table,
    has_table,
    open_table,
    present_tables,
    refuse_lost_version,
    restore_version,
    stored_files,
    swap_files,
)
from siltstone.pipeline.lake.files import (
    MadeFile,
    WriteTask,
    Written,
    by_table,
    dead_schema,
    partition_schema,
    rows_in,
    rule_schema,
    write_file,
)
from siltstone.pipeline.lake.ledger import Ledger, lake_directory, read_ledger
from siltstone.pipeline.lake.merge import TableFile
from siltstone.pipeline.lake.names import DEAD_LETTER, OTHER
from siltstone.pipeline.lake.rules import Rules, TableRule, load_rules
from siltstone.pipeline.lake.tables.rewrite import (
    REWRITE,
    OpenRewrite,
    Rewrites,
    TableChange,
    read_rewrites,
    write_rewrites,
)
from siltstone.pipeline.lake.tables.rows import dead_tables, other_dead_letters, plan_rows
from siltstone.pipeline.lake.tables.versions import keep_rules, replace_rules, store_rules
from siltstone.scan.options import ReadOptions
from siltstone.scan.survey import find_database
from siltstone.store.directory import Store

_OPTIONS: Final = ReadOptions(filters=(), rows_per_batch=65_536)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteDraft:
    """The files that were written for a rewrite, and the files of tables that they replace."""

    tables: frozenset[str]
    rules: Rules
    read: frozenset[PurePath] = frozenset()
    written: tuple[Written, ...] = ()

    def files(self) -> dict[str, list[MadeFile]]:
        """Return the new files by table."""
        return by_table([file for part in self.written for file in part.files])


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenUp:
    """The tables of a rewrite that was undone.

    `kept_rules` is the version of the rules that has the changes of a user meanwhile; None if there
    are none.
    """

    tables: tuple[str, ...]
    kept_rules: int | None


class Rewriter:
    """Rewrites tables of a lake; the caller holds the lock of the files."""

    def __init__(
        self,
        fs: FileSystem,
        clock: Clock,
        lake: PurePath,
        *,
        application: str,
        run: Runner,
        opened: Opener = open_table,
    ) -> None:
        self._fs = fs
        self._clock = clock
        self._lake = lake
        self._application = application
        self._transactions = f"{application}-rewrites"
        self._run = run
        self._opened = opened

    def draft(self, tables: Sequence[str], rules: Rules) -> RewriteDraft:
        """Write new files for the rows that tables have now. Raises: SiltstoneError."""
        return self._extended(RewriteDraft(tables=frozenset(tables), rules=rules))

    def complete(self, draft: RewriteDraft, batch: int) -> Mapping[str, int]:
        """Add the rows that came since the draft, and change the tables; return their new rows.

        The caller also holds the lock of the batches; `batch` is the last one, and has ended.

        Raises: SiltstoneError; nothing was changed then.
        """
        # A running job may have added fields meanwhile: their columns are those of its rules.
        before = load_rules(self._fs, self._lake)
        rules = before.merged(draft.rules, draft.tables)
        draft = self._extended(replace(draft, rules=rules.with_wanted(draft.tables)))
        known = read_rewrites(self._fs, self._lake)
        assert known.open is None, "an open rewrite is finished first"
        changes = self._changes(draft)
        moved = _moved(draft)
        opened = OpenRewrite(
            number=known.number + 1,
            batch=batch,
            versions={
                change.table: self._opened(self._lake / change.table).version()
                for change in changes
            },
            changes=tuple(changes),
            rules=draft.rules,
            moved=moved,
            before=before,
        )
        write_rewrites(self._fs, self._lake, replace(known, open=opened))
        self.finish()
        return {table: rows_in(files) for table, files in draft.files().items()}

    def finish(self) -> int | None:
        """Change the tables of the open rewrite, and end it. The caller holds both locks.

        If it was given up, the tables that were changed get their earlier versions back. Return the
        version of the rules that keeps the changes of a user meanwhile; None if there are none.
        """
        known = read_rewrites(self._fs, self._lake)
        if known.open is None:
            return None
        kept: int | None = None
        if known.open.given_up:
            kept = self._undo(known.open)
        else:
            self._change(known.open)
        write_rewrites(self._fs, self._lake, known.ended())
        return kept

    def give_up(self) -> int | None:
        """Undo the open rewrite, and end it, as `finish` does. The caller holds both locks.

        Raises: UsageError if it cannot be undone without a loss; nothing was changed then.
        """
        known = read_rewrites(self._fs, self._lake)
        assert known.open is not None, "the caller has looked"
        self._refuse_loss(known.open)
        write_rewrites(
            self._fs, self._lake, replace(known, open=replace(known.open, given_up=True))
        )
        return self.finish()

    def _refuse_loss(self, rewrite: OpenRewrite) -> None:
        if rewrite.before is None:
            raise UsageError(
                "an earlier version of Siltstone began the rewrite and did not note the rules "
                "before it; run 'siltstone pipeline tier', which completes it"
            )
        load_rules(self._fs, self._lake)
        gone = [change.table for change in rewrite.changes if self._is_left(change)]
        if gone and any(change.add for change in rewrite.changes):
            raise UsageError(
                f"table {gone[0]} is gone: giving up would also remove its rows from the tables "
                "they moved to; run 'siltstone pipeline tier', which completes the rewrite"
            )
        for table, version in rewrite.versions.items():
            if self._has(table):
                refuse_lost_version(
                    self._fs,
                    self._lake / table,
                    version,
                    transaction=(self._transactions, rewrite.number),
                    opened=self._opened,
                )

    def _has(self, table: str) -> bool:
        return has_table(self._fs, self._lake / table)

    def _is_left(self, change: TableChange) -> bool:
        """Return whether a table that only loses rows was removed: it has nothing more to lose."""
        return not change.add and change.remove != () and not self._has(change.table)

    def _change(self, rewrite: OpenRewrite) -> None:
        rewritten = {change.table for change in rewrite.changes if change.remove is None}
        store_rules(self._fs, self._lake, rewrite.rules, self._clock, rewritten=rewritten)
        for change in rewrite.changes:
            if self._is_left(change):
                continue
            swap_files(
                self._fs,
                self._clock,
                self._lake / change.table,
                change,
                transactions={
                    self._transactions: rewrite.number,
                    self._application: rewrite.batch,
                },
                opened=self._opened,
            )

    def _undo(self, rewrite: OpenRewrite) -> int | None:
        for table, version in rewrite.versions.items():
            # The reason to give up may be that a table is gone.
            if self._has(table):
                restore_version(
                    self._fs,
                    self._lake / table,
                    version,
                    transaction=(self._transactions, rewrite.number),
                    opened=self._opened,
                )
        before, there = rewrite.before, load_rules(self._fs, self._lake).rules
        if before is None or there == before.rules:
            return None
        rewritten = {change.table for change in rewrite.changes if change.remove is None}
        kept: int | None = None
        if there != before.merged(rewrite.rules, rewritten).rules:
            kept = keep_rules(self._fs, self._lake, self._clock)
        replace_rules(self._fs, self._lake, before, self._clock)
        return kept

    def _extended(self, draft: RewriteDraft) -> RewriteDraft:
        """Write files for the rows that no file of the draft has."""
        files = {
            path
            for table in draft.tables
            if has_table(self._fs, self._lake / table)
            for path in self._paths(table)
        }
        dead = set(self._dead(draft.tables)) if DEAD_LETTER not in draft.tables else set()
        portions = plan_rows(sorted(files - draft.read), bytes_max=TASK_BYTES)
        portions += plan_rows(
            sorted(dead - draft.read), bytes_max=TASK_BYTES, meant_for=draft.tables
        )
        tasks = [
            WriteTask(
                portion=portion,
                options=_OPTIONS,
                rules=draft.rules.rules,
                lake=str(self._lake),
                batch=0,
            )
            for portion in portions
        ]
        rules, written = settle(self._run, tasks, draft.rules)
        return replace(
            draft,
            rules=rules,
            read=draft.read | files | dead,
            written=(*draft.written, *written),
        )

    def _paths(self, table: str) -> list[PurePath]:
        place = self._lake / table
        return [place / file.path for file in stored_files(place, self._opened)]

    def _dead(self, tables: frozenset[str]) -> dict[PurePath, TableFile]:
        """Return the files with dead letters that were meant for some tables."""
        place = self._lake / DEAD_LETTER
        if not has_table(self._fs, place):
            return {}
        return {
            place / file.path: file
            for file in stored_files(place, self._opened)
            if dead_tables(place / file.path) & tables
        }

    def _changes(self, draft: RewriteDraft) -> list[TableChange]:
        """Return the changes, in their order: a row is in two tables rather than in none."""
        made = draft.files()
        removed: dict[str, list[str]] = {}
        if DEAD_LETTER not in draft.tables:
            for path, file in self._dead(draft.tables).items():
                removed.setdefault(DEAD_LETTER, []).append(file.path)
                others = other_dead_letters(path, draft.tables)
                if others.num_rows:
                    made.setdefault(DEAD_LETTER, []).append(self._stored(file, others))
        order = sorted({*made, *removed, *draft.tables}, key=lambda name: name in draft.tables)
        return [
            TableChange(
                table=table,
                schema=self._schema(table, draft),
                remove=None if table in draft.tables else tuple(removed.get(table, ())),
                add=tuple(made.get(table, ())),
            )
            for table in order
        ]

    def _stored(self, file: TableFile, rows: pa.Table) -> MadeFile:
        """Write the rest of a file of dead letters."""
        path = PurePath(file.path).parent / f"moved-{secrets.token_hex(8)}.parquet"
        size, stats = write_file(self._fs, self._lake / DEAD_LETTER / path, rows)
        return MadeFile(
            rule="",
            table=DEAD_LETTER,
            path=path.as_posix(),
            size_bytes=size,
            rows=rows.num_rows,
            partition=dict(file.partition),
            stats=stats,
        )

    def _schema(self, table: str, draft: RewriteDraft) -> str:
        """Return the Delta schema that a table gets; a table that gains rows gains columns now.

        Raises: UsageError if two rules do not agree, or a rule does not fit its table.
        """
        place = self._lake / table
        shape = _shape(table, draft.rules)
        if shape is not None:
            if table in draft.tables:
                laid_out = list(self._opened(place).metadata().partition_columns)
                if laid_out != shape[1].names:
                    raise UsageError(
                        f"table {table} is partitioned by {' and '.join(laid_out)}, which cannot "
                        "change; choose another table for the rule in rules.toml"
                    )
                return Schema.from_arrow(pa.schema([*shape[0], *shape[1]])).to_json()
            ensure_table(self._fs, place, *shape, self._opened, self._clock)
        return self._opened(place).schema().to_json()


def _shape(table: str, rules: Rules) -> tuple[pa.Schema, pa.Schema] | None:
    """Return the columns and partitions of a table by its rules; None if no rule feeds it."""
    if table == DEAD_LETTER:
        return dead_schema(), partition_schema("day")
    feeding = [rule for rule in rules.rules if rule.table == table]
    if not feeding and table == OTHER:
        feeding = [TableRule(filter="#", table=OTHER)]
    if not feeding:
        return None
    try:
        columns = pa.unify_schemas([rule_schema(rule) for rule in feeding])
    except pa.ArrowTypeError as exc:
        raise UsageError(
            f"the rules of table {table} give one column two types: {exc}; choose another column "
            "for one of the fields in rules.toml"
        ) from exc
    return columns, partition_schema(feeding[0].partition)


def _moved(draft: RewriteDraft) -> dict[str, str]:
    """Return the tables that no rule feeds any more, with the table that has most of their rows."""
    fed = {rule.table for rule in draft.rules.rules} | {DEAD_LETTER, OTHER}
    made = draft.files()
    rows = {table: rows_in(files) for table, files in made.items() if table != DEAD_LETTER}
    if not rows:
        return {}
    target = max(rows, key=lambda table: rows[table])
    return {table: target for table in sorted(draft.tables - fed) if table != target}


def begin_rewrites(fs: FileSystem, lake: PurePath, clock: Clock, ledger: Ledger) -> None:
    """Prepare a lake for its first rewrite.

    The rules of an earlier version never give way to wider ones: queries name its tables. The
    caller holds the lock of the batches.
    """
    if fs.exists(lake / REWRITE):
        return
    if ledger.batch or ledger.open is not None:
        replace_rules(fs, lake, load_rules(fs, lake).kept(), clock)
    write_rewrites(fs, lake, Rewrites())


def retier(
    run: Runner,
    path: str,
    tables: Sequence[str],
    *,
    database: str = "",
    fs: FileSystem | None = None,
    clock: Clock | None = None,
) -> Mapping[str, int]:
    """Derive tables again from their payloads, by the current rules; return rows by table.

    It works beside a running tier job, which waits only while the tables are changed.

    Raises: NotFoundError, UsageError; RetryError if a killed tier job has left a batch open.
    """
    used = fs or PosixFileSystem()
    directory = absolute_path(path)
    with Store(directory, read_only=True, fs=used) as store:
        found = find_database(store, database)
    lake = lake_directory(directory, found.name)
    with locked_files(used, lake):
        ledger = read_ledger(used, lake, found.identity)
        now = clock or SystemClock()
        rewriter = Rewriter(used, now, lake, application=ledger.application, run=run)
        with locked_batches(used, lake):
            ledger = read_ledger(used, lake, found.identity)
            begin_rewrites(used, lake, now, ledger)
            rewriter.finish()
        _refuse_unknown(used, lake, tables)
        rules = load_rules(used, lake).effective().with_wanted(tables)
        draft = rewriter.draft(tables, rules)
        with locked_batches(used, lake):
            ledger = read_ledger(used, lake, found.identity)
            if ledger.open is not None:
                raise RetryError(
                    "a tier job was interrupted in a batch; run 'siltstone pipeline tier' first"
                )
            return rewriter.complete(draft, ledger.batch)


def give_up(
    path: str,
    *,
    database: str = "",
    fs: FileSystem | None = None,
    clock: Clock | None = None,
) -> GivenUp:
    """Undo a rewrite that was interrupted and cannot be completed.

    The tables and rules.toml are then as before the rewrite. It works beside a running tier job,
    and can be repeated after a crash.

    Raises: NotFoundError if no rewrite is open; UsageError if it cannot be undone without a loss,
    and then nothing was changed.
    """
    used = fs or PosixFileSystem()
    directory = absolute_path(path)
    with Store(directory, read_only=True, fs=used) as store:
        found = find_database(store, database)
    lake = lake_directory(directory, found.name)
    with locked_files(used, lake), locked_batches(used, lake):
        known = read_rewrites(used, lake)
        if known.open is None:
            raise NotFoundError(f"no rewrite of tables in {lake} was interrupted")
        ledger = read_ledger(used, lake, found.identity)
        run = run_here(used)
        now = clock or SystemClock()
        kept = Rewriter(used, now, lake, application=ledger.application, run=run).give_up()
        there = {table for table in known.open.versions if has_table(used, lake / table)}
        return GivenUp(tables=tuple(sorted(there)), kept_rules=kept)


def _refuse_unknown(fs: FileSystem, lake: PurePath, tables: Sequence[str]) -> None:
    there = present_tables(fs, lake)
    for table in tables:
        if table not in there:
            raise NotFoundError(
                f"unknown table {table!r} in {lake} (found: {', '.join(there) or 'none'})"
            )
        if content(lake / table) != "rows":
            raise UsageError(f"table {table} has no rows of topics, so it cannot be derived again")
