"""`siltstone spool`: a durable queue of files, from the shell."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from siltstone import spool
from siltstone.cli.options import Json
from siltstone.cli.output.help import App
from siltstone.cli.output.output import add_row, facts, say, show, show_json, table
from siltstone.cli.output.streams import standard_input
from siltstone.errors import UsageError
from siltstone.settings.quantities import format_size
from siltstone.spool import Entry, Source, Spool

app = App("Use a durable queue of files.", "siltstone spool list outbox")

_CHUNK_BYTES: Final = 262_144

Directory = Annotated[
    Path,
    typer.Argument(
        metavar="DIR", help="Directory of the spool.", file_okay=False, show_default=False
    ),
]
Id = Annotated[
    int, typer.Argument(metavar="ID", help="Id of the entry.", min=0, show_default=False)
]


def entry_document(entry: Entry) -> dict[str, Any]:
    """Return the JSON form of an entry."""
    return {"id": entry.id, "metadata": entry.metadata}


def _find(opened: Spool, number: int) -> Entry:
    """Return the entry with an id. Raises: UsageError."""
    found = next((entry for entry in opened if entry.id == number), None)
    if found is None:
        raise UsageError(
            f"{opened.path} has no entry {number}; 'siltstone spool list' shows the entries"
        )
    return found


@app.command()
def create(directory: Directory, json: Json = False) -> None:
    """Create an empty spool.

    $ siltstone spool create outbox
    """
    with spool.create(directory) as made:
        if json:
            show_json({"path": str(made.path)})
        else:
            say(f"created spool {made.path}")


@app.command()
def put(
    directory: Directory,
    files: Annotated[
        list[typer.FileBinaryRead] | None,
        typer.Argument(metavar="FILE…", help="Files to store.", show_default="standard input"),
    ] = None,
    metadata: Annotated[
        str | None,
        typer.Option(
            "--metadata",
            "-m",
            help="Text to store in the names of the entries.",
            show_default="the names of the files",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Store files as entries, and print their ids.

    The files are synced to disk when the command returns. One process at a time can write a spool.

    $ siltstone spool put outbox invoice.xml
    $ siltstone spool put outbox --metadata invoice < invoice.xml
    """
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
    """List the entries, the oldest first.

    $ siltstone spool list outbox
    """
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
    """Print the data of an entry, unchanged.

    $ siltstone spool cat outbox 1
    """
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
        list[int],
        typer.Argument(metavar="ID…", help="Ids of the entries.", min=0, show_default=False),
    ],
    to: Annotated[
        Path | None,
        typer.Option(
            "--to",
            metavar="FILE",
            help="Move the data of the entry to this file, which must not exist.",
            show_default=False,
        ),
    ] = None,
    reason: Annotated[
        str | None,
        typer.Option("--reason", help="Text to write beside the file of --to.", show_default=False),
    ] = None,
    json: Json = False,
) -> None:
    """Delete entries.

    $ siltstone spool discard outbox 1 2
    $ siltstone spool discard outbox 1 --to failed.xml --reason 'invalid XML'
    """
    if to is not None and len(numbers) != 1:
        raise UsageError(f"--to takes one entry, got {len(numbers)}")
    if reason is not None and to is None:
        raise UsageError("--reason needs --to; pass both")
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
    """Show the number of entries and their size.

    $ siltstone spool stats outbox
    """
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
                ("next id, or higher", f"{counted.next_likely_id}"),
            )
        )
    )
