"""The store as a Spark table: only the public names."""

from siltstone.pipeline.answers import count, explain
from siltstone.pipeline.catalog import attach
from siltstone.pipeline.source.source import SiltstoneSource, register
from siltstone.pipeline.spark.session import start_session
from siltstone.pipeline.table import lake_table, lake_tables, table
from siltstone.pipeline.watch import StreamProgress, Watch, watch

__all__ = [
    "SiltstoneSource",
    "StreamProgress",
    "Watch",
    "attach",
    "count",
    "explain",
    "lake_table",
    "lake_tables",
    "register",
    "start_session",
    "table",
    "watch",
]
