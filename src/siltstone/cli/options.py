"""What the commands share: where the data is, and how to answer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final, TypeVar

import typer

from siltstone.errors import UsageError

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
