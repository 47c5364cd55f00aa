"""`siltstone slabs`, `seal`, `compact` and `drop`: the generations of a database."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import typer
from rich.table import Table

from siltstone.cli.management import manage
from siltstone.cli.opening import open_reading
from siltstone.cli.options import DATA_DEFAULT, Data, Json, Name, Yes
from siltstone.cli.output.output import (
    add_row,
    confirm_drop,
    counted,
    note,
    say,
    show,
    show_json,
    table,
)
from siltstone.cli.output.progress import ROWS, progress
from siltstone.errors import UsageError
from siltstone.manage.databases import CompactableSegment, NameDatabase, NameSegment, NameSlab
from siltstone.settings.quantities import format_moment, format_size, format_time
from siltstone.store.log.info import SlabInfo
from siltstone.store.slab.manifest import SlabId

DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Only show what would be compacted; change nothing.")
]


def parse_slab(text: str) -> SlabId:
    """Parse `shard/generation`. Raises: UsageError."""
    shard, slash, generation = text.partition("/")
    if not (slash and shard.isdecimal() and generation.isdecimal()):
        raise UsageError(
            f"expected a slab as SHARD/GENERATION, got {text!r}; 'siltstone slabs' lists them"
        )
    return SlabId(int(shard), int(generation))


def slab_document(slab: SlabInfo) -> dict[str, Any]:
    """Return the JSON form of a slab."""
    return {
        "slab": str(slab.slab),
        "shard": slab.slab.shard,
        "generation": slab.slab.generation,
        "state": slab.state,
        "since": format_time(slab.since_us),
        "until": None if slab.until_us is None else format_time(slab.until_us),
        "created": format_time(slab.created_us),
        "rows": slab.rows,
        "size_bytes": slab.size_bytes,
        "segments": slab.segments,
        "compacted": slab.compacted,
        "streams": slab.streams,
        "lost_rows": slab.lost_rows,
    }


def slab_table(slabs: Iterable[SlabInfo]) -> Table:
    """Return slabs as a table for users."""
    numbers = ("rows", "size", "segments", "compacted", "streams")
    listed = table("slab", "state", "since", "until", *numbers, right=numbers)
    for slab in slabs:
        until = "" if slab.until_us is None else format_moment(slab.until_us)
        add_row(
            listed,
            (
                str(slab.slab),
                slab.state,
                format_moment(slab.since_us),
                until,
                f"{slab.rows:,}",
                format_size(slab.size_bytes),
                f"{slab.segments:,}",
                f"{slab.compacted:,}",
                f"{slab.streams:,}",
            ),
        )
    return listed


def note_losses(slabs: Iterable[SlabInfo]) -> None:
    """Print a note for each slab with rows that repair could not save."""
    for slab in slabs:
        if slab.lost_rows != 0:
            lost = "rows" if slab.lost_rows is None else counted(slab.lost_rows, "row")
            note(f"slab {slab.slab} has lost {lost} to damage; run 'siltstone verify' for details")


def slabs(name: Name, data: Data = DATA_DEFAULT, json: Json = False) -> None:
    """List the slabs of a database.

    A slab holds the rows of one generation of one shard. The command works beside a running broker.

    $ siltstone slabs messages
    """
    with open_reading(data) as store:
        found = store.database(name).slabs()
    note_losses(found)
    if json:
        show_json([slab_document(slab) for slab in found])
    else:
        show(slab_table(found))


def seal(name: Name, data: Data = DATA_DEFAULT, json: Json = False) -> None:
    """Start a new generation; the current slabs become read-only.

    A running broker makes the change.

    $ siltstone seal messages
    """
    manage(data, "seal", NameDatabase(database=name))
    with open_reading(data) as store:
        found = store.database(name).slabs()
    if json:
        show_json([slab_document(slab) for slab in found])
    else:
        show(slab_table(found))


def compact(
    name: Name, dry_run: DryRun = False, data: Data = DATA_DEFAULT, json: Json = False
) -> None:
    """Rewrite the small frames of sealed segments as large frames.

    Large frames are compressed. Rows, serials and saved positions stay the same. A running broker
    does the work, and its publishers and readers continue. To compact the current segment too, run
    'siltstone seal' first.

    $ siltstone compact messages --dry-run
    $ siltstone compact messages
    """
    found: list[CompactableSegment] = manage(
        data, "compactable", NameDatabase(database=name)
    ).segments
    rows = sum(segment.rows for segment in found)
    before = sum(segment.size_bytes for segment in found)
    after = 0 if dry_run else _compact_all(name, found, data, rows)
    if json:
        document = {"database": name, "segments": len(found), "rows": rows, "size_bytes": before}
        show_json(document if dry_run else document | {"compacted_bytes": after})
        return
    what = f"{counted(len(found), 'segment')} with {counted(rows, 'row')} of database {name}"
    if dry_run:
        say(f"would compact {what}: {format_size(before)}")
    else:
        say(f"compacted {what}: {format_size(before)} to {format_size(after)}")


def _compact_all(name: str, found: list[CompactableSegment], data: Data, rows: int) -> int:
    done = after = 0
    with progress("compacting", ROWS, total=rows) as meter:
        for segment in found:
            made = manage(
                data,
                "compact",
                NameSegment(
                    database=name,
                    shard=segment.shard,
                    generation=segment.generation,
                    base_serial=segment.base_serial,
                ),
            )
            done += segment.rows
            after += made.size_bytes
            meter.tell(done, total=rows)
    return after


def drop(
    name: Name,
    slab: Annotated[
        str,
        typer.Argument(
            metavar="SHARD/GENERATION",
            help="Sealed slab, as listed by 'siltstone slabs'.",
            show_default=False,
        ),
    ],
    yes: Yes = False,
    data: Data = DATA_DEFAULT,
    json: Json = False,
) -> None:
    """Delete a sealed slab with all its rows.

    A running broker makes the change.

    $ siltstone drop messages 0/1
    """
    wanted = parse_slab(slab)
    if not yes:
        with open_reading(data) as store:
            for found in store.database(name).slabs():
                if found.slab == wanted and found.state != "current":
                    confirm_drop(f"slab {wanted} of database {name!r}", found.rows)
    manage(
        data,
        "drop-slab",
        NameSlab(database=name, shard=wanted.shard, generation=wanted.generation),
    )
    if json:
        show_json({"database": name, "dropped": str(wanted)})
    else:
        say(f"dropped slab {wanted} of database {name}")
