"""`siltstone verify`: check every invariant of a database; with --repair, repair it.

The name of a key-value database is `kv/NAME`; that of the positions of sessions is `commits`.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import PurePath
from typing import Annotated, Any

import typer

from siltstone.cli.opening import open_reading, open_writing
from siltstone.cli.options import DATA_DEFAULT, Data, Json
from siltstone.cli.output.output import add_row, counted, say, show, show_json, table
from siltstone.cli.output.progress import BYTES, progress, tree_size
from siltstone.cli.store.kv import open_engine
from siltstone.errors import CorruptionError, DiskError, NotFoundError, UsageError
from siltstone.fs.api import FileSystem
from siltstone.fs.paths import COMMITS, StorePaths
from siltstone.fs.posix import PosixFileSystem
from siltstone.session.archive.check import archive_problems
from siltstone.settings.quantities import format_size
from siltstone.store.directory import Store
from siltstone.store.kv.mending import mend
from siltstone.store.log.check.findings import Finding
from siltstone.store.log.check.verify import VerifyReport, verify_database
from siltstone.store.shard.replicated.damage import (
    is_replicated,
    remember_findings,
    remember_map,
)
from siltstone.store.tx.catalog import read_settings
from siltstone.store.tx.reading import KeyValueReader
from siltstone.store.tx.verify import KeyValueReport, verify_keyvalue

Report = VerifyReport | KeyValueReport


def verify(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="Database, kv/NAME or commits.", show_default=False),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Check every database.")] = False,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair", help="Repair what can be repaired. Damaged files move to DIR/quarantine."
        ),
    ] = False,
    data: Data = DATA_DEFAULT,
    json: Json = False,
) -> None:
    """Check databases for damage, and repair them.

    The exit status is 1 if there is damage, also if it was repaired. The command works
    beside a running broker. With --repair it needs the data directory for itself.

    $ siltstone verify messages
    $ siltstone verify --all
    $ siltstone verify messages --repair
    """
    if (name is None) != every:
        raise UsageError("name one database, or pass --all")
    # Repair holds the lock, so there are no writers. No database is opened, because that would
    # repair it too.
    with open_writing(data) if repair else open_reading(data) as store:
        reports = _check(store, name, data, repair=repair)
    if json:
        show_json([_document(each, report) for each, report in reports.items()])
    else:
        _show(reports, repair=repair)
    if any(report.damaged for report in reports.values()):
        raise typer.Exit(1)


def _check(store: Store, name: str | None, data: Data, *, repair: bool) -> dict[str, Report]:
    """Check one database, or all. Raises: NotFoundError."""
    fs = PosixFileSystem()
    directory = StorePaths(store.path).data
    keyvalues = {
        each if each == COMMITS else f"kv/{each}": place
        for each, place in store.keyvalue_places().items()
    }
    # A database that has lost its manifest is not one of the names.
    if name is None:
        logs = sorted([*store.names(), *store.without_manifest()])
    else:
        logs = [entry.name for entry in fs.list(directory)]
    wanted = [*logs, *keyvalues] if name is None else [name]
    if name is not None and name not in (*logs, *keyvalues):
        there = ", ".join([*store.names(), *keyvalues]) or "none"
        raise NotFoundError(f"database {name!r} does not exist in {data} (databases: {there})")
    quarantine = StorePaths(store.path).quarantine
    reports: dict[str, Report] = {}
    total = sum(tree_size(fs, directory / each) for each in wanted if each not in keyvalues)
    with progress("Verifying", BYTES, total) as meter:
        for each in wanted:
            if each in keyvalues:
                reports[each] = _check_keyvalue(fs, each, keyvalues[each])
                if repair and reports[each].damaged:
                    done = mend(fs, keyvalues[each], quarantine / each)
                    mended = _mended(
                        reports[each], _check_keyvalue(fs, each, keyvalues[each]), done
                    )
                    reports[each] = _left_to_others(fs, keyvalues[each], mended)
            else:
                replicated = repair and is_replicated(fs, directory / each)
                reports[each] = verify_database(
                    fs,
                    directory / each,
                    repair=repair,
                    quarantine=quarantine,
                    progress=meter.add,
                )
                if replicated:
                    told = remember_findings(fs, directory / each, reports[each].findings)
                    reports[each] = replace(reports[each], findings=tuple(told))
    return reports


def _check_keyvalue(fs: FileSystem, name: str, place: PurePath) -> KeyValueReport:
    """Check a key-value database; check the contents of the positions too."""
    report = verify_keyvalue(fs, place, open_engine)
    if name != COMMITS or report.damaged or not report.slabs:
        return report
    with closing(KeyValueReader(open_engine(place))) as reader:
        problems = [
            Finding(path=place, offset=0, problem=problem)
            for problem in archive_problems(reader.read)
        ]
    return replace(report, findings=(*report.findings, *problems))


def _mended(before: Report, after: KeyValueReport, done: str) -> KeyValueReport:
    """Return the findings before a repair, marked as repaired unless they are found again."""
    left = {finding.problem for finding in after.findings}
    told = tuple(
        replace(finding, repaired="" if finding.problem in left else done)
        for finding in before.findings
    )
    known = {finding.problem for finding in told}
    new = tuple(finding for finding in after.findings if finding.problem not in known)
    return replace(after, findings=told + new)


def _left_to_others(fs: FileSystem, place: PurePath, report: KeyValueReport) -> KeyValueReport:
    """Let the site copy a replicated database from the others when it starts, if it can be opened
    at all.
    """
    try:
        with closing(open_engine(place)) as engine:
            settings = read_settings(engine)
    except (CorruptionError, DiskError):
        return report
    if settings.backend == "local":
        return report
    told = remember_map(fs, place, settings.shards, report.findings)
    return replace(report, findings=tuple(told))


def _document(name: str, report: Report) -> dict[str, Any]:
    counts: dict[str, int] = (
        {"slabs": report.slabs}
        if isinstance(report, KeyValueReport)
        else {"segments": report.segments, "frames": report.frames}
    )
    return {
        "database": name,
        "damaged": report.damaged,
        **counts,
        "rows": report.rows,
        "size_bytes": report.bytes,
        "findings": [
            {
                "path": str(finding.path),
                "offset": finding.offset,
                "severity": finding.severity,
                "problem": finding.problem,
                "repaired": finding.repaired,
            }
            for finding in report.findings
        ],
    }


def _show(reports: dict[str, Report], *, repair: bool) -> None:
    listed = table("database", "file", "offset", "severity", "problem", "done", right=("offset",))
    for name, report in reports.items():
        for finding in report.findings:
            place = (name, str(finding.path), f"{finding.offset:,}")
            add_row(listed, (*place, finding.severity, finding.problem, finding.repaired))
    if listed.row_count:
        show(listed)
    for name, report in reports.items():
        state = "damaged" if report.damaged else "whole"
        parts = (
            counted(report.slabs, "slab")
            if isinstance(report, KeyValueReport)
            else counted(report.segments, "segment")
        )
        size = f"{parts} with {format_size(report.bytes)}"
        say(f"{name}: {state}; {counted(report.rows, 'row')} in {size}")
    if not repair and any(report.damaged for report in reports.values()):
        say("stop the broker, then repair with --repair")
