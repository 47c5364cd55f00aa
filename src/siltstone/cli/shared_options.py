"""Options that several commands share, declared once as the fields of a dataclass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Any, get_type_hints


def takes_options(command: Callable[..., None], kind: type[Any], name: str) -> Callable[..., None]:
    """Add the options of a dataclass to a command, which receives them as one argument."""
    hints = get_type_hints(kind, include_extras=True)
    own = signature(command, eval_str=True).parameters.values()
    parameters = [parameter for parameter in own if parameter.name != name]
    parameters += [
        Parameter(
            field.name, Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
        )
        for field in fields(kind)
    ]

    @wraps(command)
    def run(**values: Any) -> None:
        shared = {field.name: values.pop(field.name) for field in fields(kind)}
        command(**{name: kind(**shared)}, **values)

    # typer reads the options of a command from its signature.
    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return run
