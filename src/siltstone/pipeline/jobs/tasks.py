"""The tasks of a job that writes to the lake: on Spark, or in this process.

A task returns an error of Siltstone as a value, because Spark would make it one of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pyspark.sql import SparkSession

from siltstone.errors import RetryError, SiltstoneError, SlabDroppedError, UsageError
from siltstone.fs.api import FileSystem
from siltstone.fs.posix import PosixFileSystem
from siltstone.pipeline.lake.files import MadeFile, WriteTask, Written, write_portion
from siltstone.pipeline.lake.merge import MergeTask, merge_files
from siltstone.pipeline.lake.rules import Rules

# A task keeps all of its decoded rows in memory before it writes them.
TASK_BYTES: Final = 64 * 1024 * 1024
# The number of times that rows are read because of new fields. The last attempt ignores new fields.
ATTEMPTS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFailure:
    """The error of a task: a class whose constructor needs only a message, and the message."""

    kind: type[SiltstoneError]
    sentence: str


# Runs all tasks of a batch, or of a round of merges, for example on Spark.
Task = WriteTask | MergeTask
Runner = Callable[[Sequence[Task]], Sequence[Written | MadeFile | TaskFailure]]


def run_here(fs: FileSystem | None = None) -> Runner:
    """Return a runner that runs the tasks in this process, one after the other."""
    return lambda tasks: [run_task(task, fs) for task in tasks]


def on_spark(spark: SparkSession) -> Runner:
    """Return a runner that runs the tasks on Spark, one in each partition.

    Raises: UsageError for a session of Spark Connect.
    """
    if not isinstance(spark, SparkSession):
        raise UsageError(
            "tier needs the Spark driver in this process, and a Spark Connect session has it "
            "elsewhere: run 'siltstone pipeline tier' or use siltstone.pipeline.start_session"
        )

    def run(tasks: Sequence[Task]) -> list[Written | MadeFile | TaskFailure]:
        return spark.sparkContext.parallelize(tasks, len(tasks)).map(run_task).collect()

    return run


def run_task(task: Task, fs: FileSystem | None = None) -> Written | MadeFile | TaskFailure:
    """Run a task on an executor; return a Siltstone error as a value."""
    try:
        if isinstance(task, MergeTask):
            return merge_files(task, fs or PosixFileSystem())
        return write_portion(task, fs or PosixFileSystem())
    except SiltstoneError as exc:
        plain = (SlabDroppedError, UsageError, RetryError)
        kind = next((kind for kind in plain if isinstance(exc, kind)), SiltstoneError)
        return TaskFailure(kind=kind, sentence=str(exc))


def write_all(run: Runner, tasks: Sequence[WriteTask]) -> list[Written]:
    """Write the files of some tasks. Raises: SiltstoneError."""
    written: list[Written] = []
    for outcome in run(tasks) if tasks else ():
        if isinstance(outcome, TaskFailure):
            raise outcome.kind(outcome.sentence)
        assert isinstance(outcome, Written), "a task of a batch writes files"
        written.append(outcome)
    return written


def settle(run: Runner, tasks: Sequence[WriteTask], rules: Rules) -> tuple[Rules, list[Written]]:
    """Write files; repeat it for rules whose payloads have new fields.

    Return the rules with these fields. Raises: SiltstoneError.
    """
    kept: list[Written] = []
    only: frozenset[str] | None = None
    for attempt in range(ATTEMPTS):
        settled = attempt == ATTEMPTS - 1
        tasks = [replace(task, rules=rules.rules, only=only, settled=settled) for task in tasks]
        written = write_all(run, tasks)
        kept += [replace(part, slabs={}) for part in written] if kept else written
        found = [item for part in written for item in part.found]
        if not found:
            break
        rules = rules.with_fields(found)
        only = frozenset(rule for rule, _, _ in found)
        # Tasks without new fields have written rows of these rules, and will write them again.
        kept = [part.without(only) for part in kept]
    return rules, kept
