"""`siltstone slabs`, `seal` and `drop`: the generations of a database."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import typer
from rich.table import Table

from siltstone.cli.opening import note_recovery, open_reading, open_writing
from siltstone.cli.options import DATA_DEFAULT, Data, Json, Name, Yes
from siltstone.cli.output import (
    add_row,
    confirm_drop,
    counted,
    note,
    say,
    show,
    show_json,
    table,
)
from siltstone.cli.quantities import format_moment, format_size, format_time
from siltstone.errors import UsageError
from siltstone.store.info import SlabInfo
from siltstone.store.manifest import SlabId


def parse_slab(text: str) -> SlabId:
    """Read `shard/generation`. Raises: UsageError."""
    shard, slash, generation = text.partition("/")
    if not (slash and shard.isdecimal() and generation.isdecimal()):
        raise UsageError(f"{text!r} is no slab; write SHARD/GENERATION, as 'siltstone slabs' does")
    return SlabId(int(shard), int(generation))


def slab_document(slab: SlabInfo) -> dict[str, Any]:
    """Return a slab as JSON shows it."""
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
        "streams": slab.streams,
        "lost_rows": slab.lost_rows,
    }


def slab_table(slabs: Iterable[SlabInfo]) -> Table:
    """Return slabs as people see them."""
    numbers = ("rows", "size", "segments", "streams")
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
                f"{slab.streams:,}",
            ),
        )
    return listed


def note_losses(slabs: Iterable[SlabInfo]) -> None:
    """Tell of slabs of which repair could not save all rows."""
    for slab in slabs:
        if slab.lost_rows != 0:
            lost = "rows" if slab.lost_rows is None else counted(slab.lost_rows, "row")
            note(f"slab {slab.slab} has lost {lost} to damage; 'siltstone verify' tells which")


def slabs(name: Name, data: Data = DATA_DEFAULT, json: Json = False) -> None:
    """List the slabs of a database: one for each generation of each shard."""
    with open_reading(data) as store:
        found = store.database(name).slabs()
    note_losses(found)
    if json:
        show_json([slab_document(slab) for slab in found])
    else:
        show(slab_table(found))


def seal(name: Name, data: Data = DATA_DEFAULT, json: Json = False) -> None:
    """Turn the generation over: what was current takes no more rows."""
    with open_writing(data) as store:
        database = store.database(name)
        note_recovery(database)
        database.seal()
        found = database.slabs()
    if json:
        show_json([slab_document(slab) for slab in found])
    else:
        show(slab_table(found))


def drop(
    name: Name,
    slab: Annotated[
        str, typer.Argument(metavar="SHARD/GENERATION", help="A sealed slab.", show_default=False)
    ],
    yes: Yes = False,
    data: Data = DATA_DEFAULT,
    json: Json = False,
) -> None:
    """Delete a sealed slab with all its rows; it asks before."""
    wanted = parse_slab(slab)
    with open_writing(data) as store:
        database = store.database(name)
        note_recovery(database)
        for found in () if yes else database.slabs():
            if found.slab == wanted and found.state != "current":
                confirm_drop(f"slab {wanted} of database {name!r}", found.rows)
        database.drop_slab(wanted)
    if json:
        show_json({"database": name, "dropped": str(wanted)})
    else:
        say(f"dropped slab {wanted} of database {name}")
