"""What the commands share: where the data is, how to answer, and how the store is opened."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final, TypeVar

import typer

import siltstone
from siltstone.errors import NotFoundError, UsageError
from siltstone.store.manifest import SlabId

Value = TypeVar("Value")

DATA_DEFAULT: Final = Path("siltstone-data")

Data = Annotated[
    Path,
    typer.Option(
        "--data",
        metavar="DIR",
        envvar="SILTSTONE_DATA",
        help="The data directory.",
        file_okay=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Answer in JSON.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The database.", show_default=False)]


def converted(parse: Callable[[str], Value]) -> Callable[[str], Value]:
    """Make a parser of ours one of typer's: its complaint then names the option."""

    def convert(text: str) -> Value:
        try:
            return parse(text)
        except UsageError as exc:
            raise typer.BadParameter(str(exc)) from exc

    return convert


def parse_slab(text: str) -> SlabId:
    """Read `shard/generation`. Raises: UsageError."""
    shard, slash, generation = text.partition("/")
    if not (slash and shard.isdecimal() and generation.isdecimal()):
        raise UsageError(f"{text!r} is no slab; write SHARD/GENERATION, as 'siltstone slabs' does")
    return SlabId(int(shard), int(generation))


def open_reading(data: Path) -> siltstone.Store:
    """Open a data directory for reading, beside whoever writes it. Raises: UsageError."""
    try:
        return siltstone.open(data, read_only=True)
    except NotFoundError as exc:
        raise UsageError(
            f"there is no Siltstone data directory at {data}; "
            f"name one with --data, or begin one with 'siltstone db create'"
        ) from exc


def open_writing(data: Path) -> siltstone.Store:
    """Open an existing data directory for writing; a misspelt one is not created.

    Raises: UsageError, LockedError.
    """
    open_reading(data).close()
    return siltstone.open(data)
