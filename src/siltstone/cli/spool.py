"""`siltstone spool`: a durable queue of files, from the shell."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from siltstone import spool
from siltstone.cli.options import Json
from siltstone.cli.output import add_row, facts, say, show, show_json, table
from siltstone.cli.quantities import format_size
from siltstone.cli.streams import standard_input
from siltstone.errors import UsageError
from siltstone.spool import Entry, Source, Spool

app = typer.Typer(no_args_is_help=True, help="A durable queue of files: one entry, one file.")

_CHUNK_BYTES: Final = 262_144

Directory = Annotated[
    Path, typer.Argument(metavar="DIR", help="The spool.", file_okay=False, show_default=False)
]
Id = Annotated[int, typer.Argument(metavar="ID", help="The entry.", min=0, show_default=False)]


def entry_document(entry: Entry) -> dict[str, Any]:
    """Return an entry as JSON shows it."""
    return {"id": entry.id, "metadata": entry.metadata}


def _find(opened: Spool, number: int) -> Entry:
    """Return the entry with an id. Raises: UsageError."""
    found = next((entry for entry in opened if entry.id == number), None)
    if found is None:
        raise UsageError(f"there is no entry {number} in {opened.path}")
    return found


@app.command()
def create(directory: Directory, json: Json = False) -> None:
    """Make an empty spool, where nothing is yet."""
    with spool.create(directory) as made:
        if json:
            show_json({"path": str(made.path)})
        else:
            say(f"created the spool {made.path}")


@app.command()
def put(
    directory: Directory,
    files: Annotated[
        list[typer.FileBinaryRead] | None,
        typer.Argument(metavar="[FILE]...", help="What to store; by default stdin."),
    ] = None,
    metadata: Annotated[
        str | None,
        typer.Option(
            "--metadata",
            "-m",
            help="What the names of the entries are to say; without, the names of the files.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Store files, all with one sync of their names; they are on disk when this returns."""
    sources: list[tuple[Source, str | None]]
    if not files:
        sources = [(standard_input(), metadata)]
    else:
        sources = [(file, Path(file.name).name if metadata is None else metadata) for file in files]
    with spool.open(directory) as opened:
        stored = opened.store_many(sources)
    if json:
        show_json([entry_document(entry) for entry in stored])
    else:
        for entry in stored:
            say(f"{entry.id}")


@app.command("list")
def list_entries(directory: Directory, json: Json = False) -> None:
    """List the entries, the oldest first, without opening them."""
    with spool.open(directory, read_only=True) as opened:
        entries = sorted(opened)
    if json:
        show_json([entry_document(entry) for entry in entries])
        return
    listed = table("id", "metadata", right=("id",))
    for entry in entries:
        add_row(listed, (f"{entry.id}", entry.metadata or ""))
    show(listed)


@app.command()
def cat(directory: Directory, number: Id) -> None:
    """Write the data of an entry to stdout."""
    out = sys.stdout.buffer
    with (
        spool.open(directory, read_only=True) as opened,
        opened.stream(_find(opened, number)) as stream,
    ):
        while chunk := stream.read(_CHUNK_BYTES):
            out.write(chunk)
        out.flush()


@app.command()
def discard(
    directory: Directory,
    numbers: Annotated[
        list[int], typer.Argument(metavar="ID...", help="The entries.", min=0, show_default=False)
    ],
    to: Annotated[
        Path | None,
        typer.Option(
            "--to",
            metavar="FILE",
            help="Move the data of the one entry there first; nothing is overwritten.",
            show_default=False,
        ),
    ] = None,
    reason: Annotated[
        str | None,
        typer.Option("--reason", help="Why; written beside that file.", show_default=False),
    ] = None,
    json: Json = False,
) -> None:
    """Remove entries for good."""
    if to is not None and len(numbers) != 1:
        raise UsageError("--to is for one entry")
    if reason is not None and to is None:
        raise UsageError("--reason goes beside the file of --to, and there is none")
    with spool.open(directory) as opened:
        found = {entry.id: entry for entry in opened if entry.id in numbers}
        entries = [found.get(number) or _find(opened, number) for number in dict.fromkeys(numbers)]
        if to is not None:
            opened.discard(entries[0], to, reason=reason)
        else:
            opened.discard_many(entries)
    if json:
        show_json({"discarded": [entry_document(entry) for entry in entries]})
    else:
        say(f"discarded {', '.join(str(entry.id) for entry in entries)}")


@app.command()
def stats(directory: Directory, json: Json = False) -> None:
    """Count the entries and what they take."""
    with spool.open(directory, read_only=True) as opened:
        counted = opened.stats()
    if json:
        show_json(
            {
                "entries": counted.entries,
                "size_bytes": counted.size_bytes,
                "unexpected": counted.unexpected,
                "kept": counted.kept,
                "next_likely_id": counted.next_likely_id,
            }
        )
        return
    show(
        facts(
            (
                ("entries", f"{counted.entries:,}"),
                ("size", format_size(counted.size_bytes)),
                ("unexpected names", f"{counted.unexpected:,}"),
                ("kept after a failure", f"{counted.kept:,}"),
                ("next id, or a higher", f"{counted.next_likely_id}"),
            )
        )
    )
