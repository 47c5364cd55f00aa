"""Where a mistake of ours ends one thing, and no other that waits behind it in the same turn."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, TypeVar

_LOG: Final = logging.getLogger("siltstone")
_T = TypeVar("_T")


def contain(act: Callable[[], object], otherwise: Callable[[], object] | None = None) -> None:
    """Do something; if it raises, log that with its trace, and do the other."""
    contain_with(lambda _: act(), None, otherwise)


def contain_with(
    act: Callable[[_T], object], argument: _T, otherwise: Callable[[], object] | None = None
) -> None:
    """Do something with an argument as `contain` does; this way costs next to nothing."""
    try:
        act(argument)
    except Exception:  # noqa: BLE001 - told with its trace, and the others go on
        _LOG.exception("internal_error")
        if otherwise is not None:
            otherwise()
