"""The Spark data source with the name siltstone."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from contextlib import closing
from dataclasses import replace
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StringType, StructType

from siltstone.errors import UsageError
from siltstone.fs.posix import PosixFileSystem
from siltstone.pipeline.infer import infer_type
from siltstone.pipeline.source.lake_reader import LakeReader, lake_schema
from siltstone.pipeline.source.origins import origin_of
from siltstone.pipeline.source.reader import SiltstoneReader
from siltstone.pipeline.source.schema import schema_ddl, spark_schema, type_ddl
from siltstone.pipeline.source.stream_reader import SiltstoneStreamReader
from siltstone.pipeline.source.writer import (
    SiltstoneStreamWriter,
    SiltstoneWriter,
    check_schema,
    target_of,
)
from siltstone.pipeline.spark.worker import (
    one_line_errors,
    spare_collections,
    use_this_python,
)
from siltstone.scan.columns.schema import PAYLOAD, table_schema
from siltstone.scan.ingest.options import WriteOptions, parse_write_options
from siltstone.scan.options import ReadOptions, parse_options
from siltstone.scan.survey import opened

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SAMPLE_ROWS: Final = 1000


class SiltstoneSource(DataSource):
    """A store as a table: to read, to stream from and to append to."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        given = dict(options)
        self._table = given.pop("table", "")
        self._given = given

    @cached_property
    def parsed(self) -> ReadOptions:
        """The options of a read."""
        return parse_options(self._given)

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return "siltstone"

    @one_line_errors()
    def schema(self) -> StructType | str:
        """Return the requested columns, with the payload decoded as requested."""
        spare_collections()
        options = self.parsed
        if self._table:
            return lake_schema(PosixFileSystem(), options, self._table)
        if options.decode == "raw" or PAYLOAD not in options.columns:
            return spark_schema(options.columns)
        if options.decode == "utf8":
            return spark_schema(options.columns, StringType())
        if options.payload_schema:
            return schema_ddl(options.columns, _as_struct(options.payload_schema))
        return schema_ddl(options.columns, type_ddl(_inferred(options)))

    @one_line_errors()
    def reader(self, schema: StructType) -> SiltstoneReader | LakeReader:
        """Return the reader of a batch query."""
        spare_collections()
        if self._table:
            return LakeReader(self.parsed, self._table, schema, PosixFileSystem())
        return SiltstoneReader(self.parsed, schema, PosixFileSystem())

    @one_line_errors()
    def streamReader(self, schema: StructType) -> SiltstoneStreamReader:
        """Return the reader of a streaming query."""
        if self._table:
            raise UsageError("option table is for batch queries; leave it out to stream the store")
        return SiltstoneStreamReader(self.parsed, schema, PosixFileSystem())

    @one_line_errors()
    def writer(self, schema: StructType, overwrite: bool) -> SiltstoneWriter:
        """Return the writer of a batch query."""
        return SiltstoneWriter(self._checked(schema, overwrite=overwrite))

    @one_line_errors()
    def streamWriter(self, schema: StructType, overwrite: bool) -> SiltstoneStreamWriter:
        """Return the writer of a streaming query."""
        return SiltstoneStreamWriter(self._checked(schema, overwrite=overwrite))

    def _checked(self, schema: StructType, *, overwrite: bool) -> WriteOptions:
        """Parse the options of a write, and make all checks that are possible before it starts."""
        options = parse_write_options(self._given)
        check_schema(schema, options, overwrite=overwrite)
        target_of(options).prepare()
        return options


def register(spark: SparkSession) -> None:
    """Register the source in a session; Spark does so itself if it finds `pyspark_siltstone`.

    Spark starts the `python3` of PATH unless PYSPARK_PYTHON is set. In a virtual environment that
    is not activated this is another Python, without this package. A local session without a
    configured Python uses the Python of this process.
    """
    use_this_python(spark)
    spark.dataSource.register(SiltstoneSource)


def _as_struct(ddl: str) -> str:
    """Return a schema as the type of one column; the STRUCT<> around the fields is optional."""
    return ddl if ddl.lower().startswith("struct<") else f"STRUCT<{ddl}>"


def _inferred(options: ReadOptions) -> StructType:
    """Infer the type of the JSON from the first rows. Raises: UsageError."""
    if options.node is not None:
        return infer_type(islice(_fetched(options), _SAMPLE_ROWS))
    with opened(PosixFileSystem(), options) as database:
        payloads = (
            payload
            for topic_filter in options.filters
            for batch in database.read(
                topic_filter,
                since_us=options.since_us,
                until_us=options.until_us,
                columns=["value"],
                rows_max=_SAMPLE_ROWS,
            )
            for payload in batch.column(0).to_pylist()
        )
        return infer_type(islice(payloads, _SAMPLE_ROWS))


def _fetched(options: ReadOptions) -> Iterator[bytes]:
    """Yield payloads from a node."""
    asked = replace(options, columns=(PAYLOAD,), rows_per_batch=_SAMPLE_ROWS)
    fs = PosixFileSystem()
    with closing(origin_of(fs, asked)) as origin:
        for portion in origin.plan_batch().partitions:
            for batch in portion.batches(fs, asked, table_schema(asked.columns)):
                yield from batch.column(0).to_pylist()
