"""What a task of Spark reads: frames of segments by their place, and nothing that is open."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath

from pyspark.sql.datasource import InputPartition

from siltstone.errors import NotFoundError, SlabDroppedError
from siltstone.fs.api import FileSystem
from siltstone.store.manifest import SlabId
from siltstone.store.rows import Piece
from siltstone.store.scan import Span
from siltstone.store.selection import Run, RunReader, Wanted


@dataclass(frozen=True)
class RunsPartition(InputPartition):
    """Runs in order, and what is wanted of the streams of each of their slabs."""

    directory: str
    runs: tuple[Run, ...]
    wanted: tuple[tuple[SlabId, Wanted], ...]

    def pieces(self, fs: FileSystem, span: Span, *, fails_on_loss: bool) -> Iterator[Piece]:
        """Yield the rows of all runs.

        Raises: SlabDroppedError when a slab has gone since the query was planned, unless its rows
        may be lost; CorruptionError.
        """
        directory = PurePath(self.directory)
        readers = {slab: RunReader(fs, directory, wanted, span) for slab, wanted in self.wanted}
        for run in self.runs:
            try:
                yield from readers[run.slab].read(run)
            except NotFoundError as exc:
                if fails_on_loss:
                    raise SlabDroppedError(
                        f"slab {run.slab} was dropped after the query was planned; run it again, "
                        "or set failOnDataLoss=false to go on without its rows"
                    ) from exc
