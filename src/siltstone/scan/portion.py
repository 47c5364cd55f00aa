"""The part of a plan that one reader reads: places of frames in segments, and no open file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath
from typing import Protocol

import pyarrow as pa

from siltstone.errors import NotFoundError, SlabDroppedError
from siltstone.fs.api import FileSystem
from siltstone.scan.columns.batches import batches
from siltstone.scan.options import ACCEPT_LOSS, ReadOptions
from siltstone.store.log.read.frame_rows import FrameRows
from siltstone.store.log.read.pieces import Piece
from siltstone.store.log.read.scan import Span
from siltstone.store.log.read.selection import FrameRun, RunReader, Wanted
from siltstone.store.slab.manifest import SlabId


class Readable(Protocol):
    """A part of a plan that can be sent to another process and read there."""

    def batches(
        self, fs: FileSystem, options: ReadOptions, schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        """Yield its rows as batches of this schema."""
        ...


@dataclass(frozen=True, slots=True)
class Portion:
    """Runs in order, and the wanted rows of the streams of each slab."""

    directory: str
    runs: tuple[FrameRun, ...]
    wanted: tuple[tuple[SlabId, Wanted], ...]

    def parts(
        self, fs: FileSystem, span: Span, *, fails_on_loss: bool
    ) -> Iterator[Piece | FrameRows]:
        """Yield the rows of all runs.

        Raises: SlabDroppedError when a slab was dropped after the query was planned, if
        fails_on_loss is set; CorruptionError.
        """
        directory = PurePath(self.directory)
        readers = {slab: RunReader(fs, directory, wanted, span) for slab, wanted in self.wanted}
        for run in self.runs:
            try:
                yield from readers[run.slab].read(run)
            except NotFoundError as exc:
                if fails_on_loss:
                    raise SlabDroppedError(
                        f"slab {run.slab} was dropped after the query was planned; run the query "
                        f"again, or {ACCEPT_LOSS} to skip its rows"
                    ) from exc

    def batches(
        self, fs: FileSystem, options: ReadOptions, schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows as batches of this schema. Raises: SlabDroppedError, CorruptionError."""
        span = Span(since_us=options.since_us, until_us=options.until_us)
        parts = self.parts(fs, span, fails_on_loss=options.fails_on_loss)
        return batches(parts, schema, options.rows_per_batch)
