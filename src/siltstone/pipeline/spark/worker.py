"""The Python worker processes of Spark, which run the planning and the tasks."""

from __future__ import annotations

import gc
import sys
from typing import Final

_DAEMON: Final = "pyspark.daemon"


def spare_collections() -> None:
    """Exclude all existing objects from the garbage collections of a Spark worker.

    A worker makes a full collection after each task: 50 ms for the thousand modules that it has
    imported, which is longer than most tasks of this source. In other processes this does nothing.
    """
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is not None and spec.name == _DAEMON and not gc.get_freeze_count():
        gc.freeze()
