"""What the commands of the pipeline share: Spark, started and stopped, and progress that moves."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from siltstone.errors import UsageError

MASTER_DEFAULT: Final = "local[*]"
Master = Annotated[
    str,
    typer.Option(
        "--master", metavar="URL", help="Where Spark runs: local[N] or spark://host:port."
    ),
]
Memory = Annotated[
    str, typer.Option("--memory", metavar="SIZE", help="Memory of the Spark driver, as 1g.")
]
Continuous = Annotated[
    bool,
    typer.Option(
        "--continuous/--once",
        help="Run until Ctrl-C as rows arrive, or stop after the stored rows.",
    ),
]
Interval = Annotated[
    float,
    typer.Option(
        "--interval", metavar="SECONDS", help="Time between looks for new rows.", min=0.05
    ),
]
DatabaseName = Annotated[
    str,
    typer.Option(
        "--database", metavar="NAME", help="Name of the database.", show_default="the only one"
    ),
]


def pipeline(module: str) -> Any:
    """Import a module of the pipeline. Raises: UsageError where Spark is not installed."""
    for needed in ("pyspark", "deltalake"):
        if find_spec(needed) is None:
            raise UsageError(
                f"package {needed} is not installed; install it with pip install 'siltstone[spark]'"
            )
    return import_module(f"siltstone.pipeline.{module}")


@contextmanager
def session(master: str, memory: str = "1g") -> Iterator[Any]:
    """Start Spark, and stop it at the end."""
    with waiting("starting Spark"):
        spark = pipeline("session").start_session(master=master, memory=memory)
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def waiting(text: str) -> Iterator[None]:
    """Show that something takes its time, on a terminal."""
    console = Console(file=sys.stderr)
    if not console.is_terminal:
        yield
        return
    with console.status(text):
        yield


@contextmanager
def counting(text: str) -> Iterator[Callable[[int, int], None]]:
    """Show how many rows are done, how fast, and how many wait; yields what to tell it."""
    console = Console(file=sys.stderr)
    progress = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TextColumn("{task.completed:,.0f} rows"),
        TextColumn("{task.fields[rate]}"),
        TextColumn("{task.fields[lag]}"),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )
    with progress:
        task = progress.add_task(text, total=None, rate="", lag="")
        done = 0

        def tell(rows: int, left: int) -> None:
            nonlocal done
            done += rows
            elapsed = progress.tasks[0].elapsed or 0.0
            rate = f"{done / elapsed:,.0f} rows/s" if elapsed else ""
            progress.update(task, completed=done, rate=rate, lag=f"{left:,} wait")

        yield tell
