"""The outputs of `siltstone read`: table, JSON, CSV, Arrow IPC stream, Parquet file.

Each sink accepts record batches with the columns that it was created for.
"""

from __future__ import annotations

import base64
import csv
import json
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO, Final, Protocol, TextIO

import pyarrow as pa
import pyarrow.parquet as pq
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Table
from rich.text import Text

from siltstone.cli.output.output import print_on, printable
from siltstone.settings.quantities import format_time
from siltstone.store.log.read.pieces import schema_of

TABLE_COLUMNS: Final = ("timestamp", "topic", "publisher", "qos", "value")
# The number of rows that are laid out together; widths grow from one part to the next.
_PART_ROWS: Final = 200
_ROW_GROUP_ROWS: Final = 1 << 18
# On a terminal, the start and the end of a topic identify it.
_CUT_IN_THE_MIDDLE: Final = frozenset({"topic", "publisher"})
_CELL_MIN: Final = 24
_NUMBERS: Final = frozenset({"qos", "shard", "generation", "serial"})
# The CSV fields of a column whose bytes may not be text.
_CSV_FIELDS: Final = {
    "value": ("value", "value_base64"),
    "properties": ("properties_base64",),
}


class Sink(Protocol):
    """Accepts rows; the owner of the file closes it."""

    def write(self, batch: pa.RecordBatch) -> None: ...

    def flush(self) -> None:
        """Make the written rows visible to a reader."""
        ...

    def close(self) -> None:
        """Finish after all rows were written."""
        ...

    def abandon(self) -> None:
        """Finish after an error; a file that would look complete is emptied."""
        ...


def _times(array: pa.Array) -> list[str]:
    return [format_time(time_us) for time_us in array.view(pa.int64()).to_pylist()]


def _streams(array: pa.Array) -> list[str]:
    return [f"{stream:016x}" for stream in array.to_pylist()]


_CONVERTED: Final[dict[str, Callable[[pa.Array], list[str]]]] = {
    "timestamp": _times,
    "stream": _streams,
}


def _plain_column(batch: pa.RecordBatch, name: str) -> list[Any]:
    convert = _CONVERTED.get(name)
    return batch.column(name).to_pylist() if convert is None else convert(batch.column(name))


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def json_document(names: Sequence[str], row: Sequence[Any]) -> dict[str, Any]:
    """Return a row as JSON: a value that is not UTF-8, and properties, in base64."""
    document: dict[str, Any] = {}
    for name, item in zip(names, row, strict=True):
        if name == "properties":
            document["properties_base64"] = _encoded(item)
        elif name == "value":
            try:
                document["value"] = item.decode()
            except UnicodeDecodeError:
                document["value_base64"] = _encoded(item)
        else:
            document[name] = item
    return document


class JsonLinesSink:
    """One JSON object for each row."""

    def __init__(self, file: TextIO, columns: Sequence[str]) -> None:
        self._file = file
        self._columns = columns

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a line for each row."""
        columns = [_plain_column(batch, name) for name in self._columns]
        lines = (
            json.dumps(json_document(self._columns, row), ensure_ascii=False)
            for row in zip(*columns, strict=True)
        )
        self._file.write("".join(f"{line}\n" for line in lines))

    def flush(self) -> None:
        """Make the written rows visible to a reader."""
        self._file.flush()

    def close(self) -> None:
        """Make the written rows visible to a reader."""
        self._file.flush()

    def abandon(self) -> None:
        """Leave the lines unchanged."""


class JsonSink:
    """One JSON array of all rows."""

    def __init__(self, file: TextIO, columns: Sequence[str]) -> None:
        self._file = file
        self._columns = columns
        self._before = "[\n"

    def write(self, batch: pa.RecordBatch) -> None:
        """Write an element for each row."""
        columns = [_plain_column(batch, name) for name in self._columns]
        for row in zip(*columns, strict=True):
            document = json.dumps(json_document(self._columns, row), ensure_ascii=False)
            self._file.write(f"{self._before}{document}")
            self._before = ",\n"

    def flush(self) -> None:
        """Make the written rows visible to a reader."""
        self._file.flush()

    def close(self) -> None:
        """End the array."""
        self._file.write("[]\n" if self._before == "[\n" else "\n]\n")
        self._file.flush()

    def abandon(self) -> None:
        """Leave the array without its end, so that a reader detects the missing rows."""


class CsvSink:
    """Comma-separated values with a header, in the form that `siltstone append` reads.

    A value that is not UTF-8 is in the column value_base64; its column value is empty.
    """

    def __init__(self, file: TextIO, columns: Sequence[str]) -> None:
        self._file = file
        self._columns = columns
        fields = [field for name in columns for field in _CSV_FIELDS.get(name, (name,))]
        # With the line ends of RFC 4180, the writer quotes values with either character.
        self._writer = csv.DictWriter(file, fields, restval="", lineterminator="\r\n")
        self._writer.writeheader()

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a line for each row."""
        columns = [_plain_column(batch, name) for name in self._columns]
        for row in zip(*columns, strict=True):
            document = json_document(self._columns, row)
            if "retain" in document:
                document["retain"] = "true" if document["retain"] else "false"
            self._writer.writerow(document)

    def flush(self) -> None:
        """Make the written rows visible to a reader."""
        self._file.flush()

    def close(self) -> None:
        """Make the written rows visible to a reader."""
        self._file.flush()

    def abandon(self) -> None:
        """Leave the lines unchanged."""


class TableSink:
    """Aligned columns under one header, laid out as rows arrive; columns grow but never shrink."""

    def __init__(self, console: Console, columns: Sequence[str]) -> None:
        self._console = console
        self._columns = columns
        self._widths = [len(name) for name in columns]
        self._begun = False

    def write(self, batch: pa.RecordBatch) -> None:
        """Print the rows."""
        for start in range(0, batch.num_rows, _PART_ROWS):
            self._write_part(batch.slice(start, _PART_ROWS))

    def flush(self) -> None:
        """Make the printed rows visible to a reader."""
        self._console.file.flush()

    def close(self) -> None:
        """Print at least the header."""
        if not self._begun:
            self._print(self._table())
        self.flush()

    def abandon(self) -> None:
        """Leave the lines unchanged."""

    def _write_part(self, batch: pa.RecordBatch) -> None:
        columns = [self._cells(batch, name) for name in self._columns]
        for number, cells in enumerate(columns):
            widest = max((cell_len(cell) for cell in cells), default=0)
            # The last column is not padded.
            if number < len(columns) - 1:
                self._widths[number] = max(self._widths[number], widest)
        table = self._table()
        for row in zip(*columns, strict=True):
            table.add_row(*map(Text, row))
        self._print(table)

    def _cells(self, batch: pa.RecordBatch, name: str) -> list[str]:
        cells = [_cell(item) for item in _plain_column(batch, name)]
        if not self._console.is_terminal or name not in _CUT_IN_THE_MIDDLE:
            return cells
        # One long topic would leave no space for the columns after it.
        widest = max(_CELL_MIN, self._console.width // 3)
        return [shortened(cell, widest) for cell in cells]

    def _table(self) -> Table:
        table = Table(box=None, show_header=not self._begun, pad_edge=False, header_style="bold")
        for name, width in zip(self._columns, self._widths, strict=True):
            table.add_column(
                name,
                justify="right" if name in _NUMBERS else "left",
                style="dim" if name == "timestamp" else "",
                min_width=width,
                no_wrap=True,
                overflow="ellipsis",
            )
        return table

    def _print(self, table: Table) -> None:
        self._begun = True
        print_on(self._console, table)


def shortened(text: str, width: int) -> str:
    """Return text without its middle if it is wider than this number of cells."""
    if cell_len(text) <= width:
        return text
    kept = width - 1
    head = set_cell_size(text, kept // 2).rstrip()
    tail = set_cell_size(text[::-1], kept - kept // 2)[::-1].lstrip()
    return f"{head}…{tail}"


def _cell(item: Any) -> str:
    if isinstance(item, bytes):
        try:
            return printable(item.decode())
        except UnicodeDecodeError:
            return f"base64:{_encoded(item)}"
    if isinstance(item, bool):
        return "true" if item else "false"
    return printable(str(item))


class ArrowSink:
    """An Arrow IPC stream."""

    def __init__(self, file: BinaryIO, columns: Sequence[str]) -> None:
        self._file = file
        self._writer = pa.ipc.new_stream(file, schema_of(columns))

    def write(self, batch: pa.RecordBatch) -> None:
        """Write one batch."""
        self._writer.write_batch(batch)

    def flush(self) -> None:
        """Make the written rows visible to a reader."""
        self._file.flush()

    def close(self) -> None:
        """Write the end of the stream."""
        self._writer.close()
        self._file.flush()

    def abandon(self) -> None:
        """Leave the stream without its end."""


class ParquetSink:
    """A compressed Parquet file; it can be read after it is closed."""

    def __init__(self, file: BinaryIO, columns: Sequence[str]) -> None:
        self._file = file
        self._writer = pq.ParquetWriter(file, schema_of(columns), compression="zstd")
        self._waiting: list[pa.RecordBatch] = []
        self._rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Collect rows: a row group of few rows makes a large and slow file."""
        self._waiting.append(batch)
        self._rows += batch.num_rows
        if self._rows >= _ROW_GROUP_ROWS:
            self.flush()

    def flush(self) -> None:
        """Write the collected rows as a row group."""
        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting))
        self._waiting, self._rows = [], 0

    def close(self) -> None:
        """Write the remaining rows and the footer."""
        self.flush()
        self._writer.close()

    def abandon(self) -> None:
        """Empty the file: pyarrow writes a footer, and a part would look like the whole."""
        self._writer.close()
        self._file.seek(0)
        self._file.truncate()
