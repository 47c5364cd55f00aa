"""The declared settings of databases on the command line: options, changes, and their display."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import wraps
from inspect import Parameter, Signature, signature
from types import MappingProxyType
from typing import Annotated, Any

import typer

from siltstone.cli.options import converted
from siltstone.errors import UsageError
from siltstone.settings.declare import Declared, declared, values_of, wrong_value
from siltstone.store.slab.settings import DatabaseSettings
from siltstone.store.tx.settings import KeyValueSettings


def as_option(known: Declared) -> str:
    """Name a setting as an option of a command."""
    return f"--{known.option}"


def takes_settings(
    command: Callable[..., None], kind: type[Any], *, without: Collection[str] = ()
) -> Callable[..., None]:
    """Add an option for each declared setting to a command.

    The command receives the values that were given as `settings`, by field.
    """
    options = {
        known.option.replace("-", "_"): known
        for known in declared(kind).values()
        if known.field not in without
    }
    own = [
        parameter
        for parameter in signature(command, eval_str=True).parameters.values()
        if parameter.name != "settings"
    ]
    # Arguments come first, and the options that all commands have come last.
    first = [parameter for parameter in own if parameter.default is Parameter.empty]
    added = [
        Parameter(
            name,
            Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[Any, _option_of(known)],
        )
        for name, known in options.items()
    ]
    last = [
        parameter.replace(kind=Parameter.KEYWORD_ONLY)
        for parameter in own
        if parameter not in first
    ]

    @wraps(command)
    def run(**values: Any) -> None:
        given = {known.field: values.pop(name) for name, known in options.items()}
        settings = {field: value for field, value in given.items() if value is not None}
        command(settings=settings, **values)

    # typer reads the options of a command from its signature.
    run.__signature__ = Signature([*first, *added, *last])  # type: ignore[attr-defined]
    return run


def _option_of(known: Declared) -> Any:
    return typer.Option(
        f"--{known.option}",
        parser=converted(known.parse),
        metavar=known.metavar,
        help=known.setting.help,
        show_default=known.show(known.default),
    )


def shown_settings(
    settings: DatabaseSettings | KeyValueSettings,
    pending: Mapping[str, Sequence[Any]] = MappingProxyType({}),
) -> list[tuple[str, str]]:
    """Return the option name and the readable value of each setting.

    `pending` has the values of current slabs, for settings that the next generation has.
    """
    values = values_of(settings)
    return [
        (known.option, _shown(known, values[field], pending.get(field, ())))
        for field, known in declared(type(settings)).items()
    ]


def _shown(known: Declared, value: Any, current: Sequence[Any]) -> str:
    text = known.show(value)
    if not current:
        return text
    return f"{' and '.join(map(known.show, current))} (next generation: {text})"


def parse_changes(assignments: Iterable[str]) -> dict[str, Any]:
    """Parse `name=value` texts; a name is that of the option or the field. Raises: UsageError."""
    settings = declared(DatabaseSettings)
    by_name = {known.option.replace("-", "_"): known for known in settings.values()} | dict(
        settings
    )
    changes: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        known = by_name.get(name.strip().removeprefix("--").replace("-", "_"))
        if not equals:
            raise UsageError(f"expected NAME=VALUE, as in retain=30d, got {assignment!r}")
        if known is None:
            names = [each.option for each in settings.values()]
            close = get_close_matches(name.strip(), names, n=1)
            hint = f", did you mean {close[0]}?" if close else f" (known: {', '.join(names)})"
            raise UsageError(f"unknown setting {name.strip()!r}{hint}")
        try:
            value = known.parse(text)
        except UsageError as exc:
            raise UsageError(f"{name.strip()}: {exc}") from exc
        if (expected := known.complaint(value)) is not None:
            raise wrong_value(name.strip(), expected, value)
        changes[known.field] = value
    return changes
