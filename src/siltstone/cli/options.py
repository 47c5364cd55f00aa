"""Options that all commands share: the data directory and the output format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

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
        help="Directory that holds all databases.",
        file_okay=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
Name = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the database.", show_default=False)
]
FilterOption = Annotated[
    str, typer.Option("--filter", metavar="FILTER", help="Topic filter, with + and # as in MQTT.")
]
Since = Annotated[
    str | None,
    typer.Option(
        "--since",
        metavar="TIME",
        help="Beginning of the time range: ISO 8601, seconds since 1970, now, or -1h.",
        show_default="the beginning",
    ),
]
Until = Annotated[
    str | None,
    typer.Option(
        "--until",
        metavar="TIME",
        help="End of the time range, not included.",
        show_default="no end",
    ),
]


def converted(parse: Callable[[str], Value]) -> Callable[[str], Value]:
    """Adapt a parser for typer, so that its error message names the option."""

    def convert(text: str) -> Value:
        try:
            return parse(text)
        except UsageError as exc:
            raise typer.BadParameter(str(exc)) from exc

    return convert


def plain_complaint(exc: typer.TyperException) -> str:
    """Return the error message of typer; messages of pydantic are rewritten in plain words."""
    # The import is slow. If a value was invalid, the module is already loaded.
    from pydantic import ValidationError  # noqa: PLC0415

    if isinstance(exc, typer.BadParameter) and isinstance(exc.__cause__, ValidationError):
        found = exc.__cause__.errors(include_url=False)[0]
        exc.message = _plain(found["type"], found.get("ctx", {}), found["input"]) or exc.message
    return exc.format_message()


def _plain(kind: str, facts: Mapping[str, Any], value: object) -> str | None:
    match kind:
        case "greater_than_equal":
            return f"must be at least {facts['ge']:.15g}, got {value}"
        case "less_than_equal":
            return f"must be at most {facts['le']:.15g}, got {value}"
        case "int_parsing" | "int_parsing_size":
            return f"expected a whole number, got {value!r}"
        case "float_parsing":
            return f"expected a number, got {value!r}"
        case "value_error":
            return str(facts["error"])
        case _:
            return None


def check_replaceable(file: Path) -> None:
    """Check a file before it is replaced; a device, a pipe or a directory must stay as it is.

    Raises: UsageError.
    """
    if file.exists() and not file.is_file():
        raise UsageError(f"{file} is not a regular file; choose another name")
