"""`siltstone verify`: check every invariant of a database; with --repair, mend what can be."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from siltstone.cli.options import DATA_DEFAULT, Data, Json, open_reading, open_writing
from siltstone.cli.output import add_row, counted, say, show, show_json, table
from siltstone.cli.quantities import format_size
from siltstone.errors import NotFoundError, UsageError
from siltstone.fs.posix import PosixFileSystem
from siltstone.store.verify import VerifyReport, verify_database


def verify(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="The database.", show_default=False)
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Check every database.")] = False,
    repair: Annotated[
        bool, typer.Option("--repair", help="Mend what can be; damage goes to DIR/quarantine.")
    ] = False,
    data: Data = DATA_DEFAULT,
    json: Json = False,
) -> None:
    """Check that a database is whole; the status is 1 when it is not, or was not before."""
    if (name is None) != every:
        raise UsageError("verify one database by its NAME, or --all of them")
    fs = PosixFileSystem()
    # Repair keeps writers away by the lock; no database is opened, for that would mend it too.
    with open_writing(data) if repair else open_reading(data) as store:
        directory = store.path / "data"
        # One without its manifest is no database to the store, but is what may be asked about.
        known = store.names() if name is None else [entry.name for entry in fs.list(directory)]
        if name is not None and name not in known:
            there = ", ".join(store.names()) or "none"
            raise NotFoundError(f"there is no database {name!r} in {data}; there are: {there}")
        quarantine = store.path / "quarantine"
        reports = {
            each: verify_database(fs, directory / each, repair=repair, quarantine=quarantine)
            for each in (known if name is None else [name])
        }
    if json:
        show_json([_document(each, report) for each, report in reports.items()])
    else:
        _show(reports, repair=repair)
    if any(report.damaged for report in reports.values()):
        raise typer.Exit(1)


def _document(name: str, report: VerifyReport) -> dict[str, Any]:
    return {
        "database": name,
        "damaged": report.damaged,
        "segments": report.segments,
        "frames": report.frames,
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


def _show(reports: dict[str, VerifyReport], *, repair: bool) -> None:
    listed = table("database", "file", "offset", "severity", "problem", "done", right=("offset",))
    for name, report in reports.items():
        for finding in report.findings:
            place = (name, str(finding.path), f"{finding.offset:,}")
            add_row(listed, (*place, finding.severity, finding.problem, finding.repaired))
    if listed.row_count:
        show(listed)
    for name, report in reports.items():
        state = "damaged" if report.damaged else "whole"
        size = f"{counted(report.segments, 'segment')} with {format_size(report.bytes)}"
        say(f"{name}: {state}; {counted(report.rows, 'row')} in {size}")
    if not repair and any(report.damaged for report in reports.values()):
        say("mend it with --repair, while no process writes")
