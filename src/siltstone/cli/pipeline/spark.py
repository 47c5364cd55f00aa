"""Common parts of the pipeline commands: their options, and the start and stop of Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated, Any, Final

import typer

from siltstone.cli.output.progress import waiting
from siltstone.errors import UsageError

MASTER_DEFAULT: Final = "local[*]"
Master = Annotated[
    str,
    typer.Option(
        "--master", metavar="URL", help="Where Spark runs: local[N] or spark://host:port."
    ),
]
Memory = Annotated[
    str,
    typer.Option("--memory", metavar="SIZE", help="Memory of the Spark driver, for example 1g."),
]
Continuous = Annotated[
    bool,
    typer.Option(
        "--continuous/--once",
        help="Run until Ctrl-C as rows arrive, or stop after the stored rows.",
    ),
]
DatabaseName = Annotated[
    str,
    typer.Option(
        "--database", metavar="NAME", help="Name of the database.", show_default="the only one"
    ),
]


def pipeline(module: str) -> Any:
    """Import a module of the pipeline. Raises: UsageError if Spark is not installed."""
    for needed in ("pyspark", "deltalake"):
        if find_spec(needed) is None:
            raise UsageError(
                f"package {needed} is not installed; install it with pip install 'siltstone[spark]'"
            )
    return import_module(f"siltstone.pipeline.{module}")


@contextmanager
def session(master: str, memory: str = "1g") -> Iterator[Any]:
    """Start Spark, and stop it at the end."""
    with waiting("Starting Spark"):
        spark = pipeline("spark.session").start_session(master=master, memory=memory)
    try:
        yield spark
    finally:
        spark.stop()
