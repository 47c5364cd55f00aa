"""The Python processes that Spark starts: where our planning and our tasks run."""

from __future__ import annotations

import gc
import sys
from typing import Final

_DAEMON: Final = "pyspark.daemon"


def spare_collections() -> None:
    """Take what is there by now out of the garbage collections of a worker of Spark.

    A worker makes a full one after each task, before it takes the next: 50 ms for the thousand
    modules that it has imported, more than our part of most tasks. Elsewhere nothing is done.
    """
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is not None and spec.name == _DAEMON and not gc.get_freeze_count():
        gc.freeze()
