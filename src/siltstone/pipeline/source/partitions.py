"""A part of a plan as Spark sends it to a task."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from siltstone.scan.portion import Readable


@dataclass(frozen=True)
class SourcePartition(InputPartition):
    """What a task reads, of a directory or of a node; None for nothing."""

    portion: Readable | None
