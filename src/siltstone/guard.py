"""Containment of internal errors: an error in one operation does not stop the next ones."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, TypeVar

_LOG: Final = logging.getLogger("siltstone")
_T = TypeVar("_T")


def contain(act: Callable[[], object], otherwise: Callable[[], object] | None = None) -> None:
    """Call a function; if it raises, log the error with its traceback and call `otherwise`."""
    contain_with(_call, act, otherwise)


def _call(act: Callable[[], object]) -> object:
    return act()


def contain_with(
    act: Callable[[_T], object], argument: _T, otherwise: Callable[[], object] | None = None
) -> None:
    """Call a function with an argument, as `contain` does, without the cost of a closure."""
    if not _try(act, argument) and otherwise is not None:
        otherwise()


def contain_each(
    act: Callable[[_T], object], arguments: list[_T], otherwise: Callable[[_T], object]
) -> None:
    """Call a function with each argument, as `contain_with` does; `otherwise` gets the argument of
    a failed call.
    """
    for argument in arguments:
        if not _try(act, argument):
            contain_with(otherwise, argument)


def _try(act: Callable[[_T], object], argument: _T) -> bool:
    """Call a function; return whether it succeeded. An error is logged."""
    try:
        act(argument)
    except Exception:  # noqa: BLE001 - logged with its traceback; other operations continue
        _LOG.exception("internal_error")
        return False
    return True
