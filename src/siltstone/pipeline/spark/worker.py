"""The Python worker processes of Spark, which run the planning and the tasks."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from siltstone.errors import SiltstoneError

_DAEMON: Final = "pyspark.daemon"
_WORKERS: Final = "pyspark."
_PYTHON: Final = "spark.pyspark.python"
# With this variable, Spark sends the last line of an error and not its traceback.
_HIDE: Final = "SPARK_HIDE_TRACEBACK"


def use_this_python(spark: Any) -> None:
    """Let the workers of a local session be the Python of this process, unless it was told one."""
    # A session of Spark Connect has no context: its Python is that of the server.
    context = getattr(spark, "sparkContext", None)
    if context is None or not context.master.startswith("local"):
        return
    if "PYSPARK_PYTHON" not in os.environ and not context.getConf().contains(_PYTHON):
        context.pythonExec = sys.executable


def spare_collections() -> None:
    """Exclude all existing objects from the garbage collections of a Spark worker.

    A worker makes a full collection after each task: 50 ms for the thousand modules that it has
    imported, which is longer than most tasks of this source. In other processes this does nothing.
    """
    if _main() == _DAEMON and not gc.get_freeze_count():
        gc.freeze()


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Let Spark show a Siltstone error as one line, without the traceback of its worker.

    The worker ends with the error, so errors of other sources keep their tracebacks. In other
    processes this does nothing.
    """
    try:
        yield
    except SiltstoneError:
        if _main().startswith(_WORKERS):
            os.environ[_HIDE] = "1"
        raise


def _main() -> str:
    """Return the name of the module that this process runs; empty for a script."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return "" if spec is None else str(spec.name)
