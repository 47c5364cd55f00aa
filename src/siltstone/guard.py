"""Where a mistake of ours ends one thing, and no other that waits behind it in the same turn."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

_LOG: Final = logging.getLogger("siltstone")


def contain(act: Callable[[], object], otherwise: Callable[[], object] | None = None) -> None:
    """Do something; if it raises, log that with its trace, and do the other."""
    try:
        act()
    except Exception:  # noqa: BLE001 - told with its trace, and the others go on
        _LOG.exception("a mistake of ours, contained")
        if otherwise is not None:
            otherwise()
