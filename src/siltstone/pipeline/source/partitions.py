"""A part of a plan, in the form that Spark sends to a task."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from siltstone.scan.portion import Readable


@dataclass(frozen=True)
class SourcePartition(InputPartition):
    """The part of a plan that a task reads; None for nothing."""

    portion: Readable | None
