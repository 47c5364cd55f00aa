"""The store of a node as a DataFrame, by url, without the lake of the node.

A lake consists of files on the machine of the data directory. Rows that are only in the lake can
therefore not be read by url. A query for these rows raises an error and does not return a partial
result.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta

from pyspark.sql import DataFrame, SparkSession

from siltstone.errors import UsageError
from siltstone.flight.client import NodeClient
from siltstone.flight.origin import NodeOrigin
from siltstone.scan.node import NODE_OPTIONS, Node, node_from
from siltstone.scan.options import parse_options


def find_node(path: str, given: Mapping[str, str]) -> Node | None:
    """Return the node of options that replace a path; None if there are none.

    Raises: UsageError for other options, or if both are given.
    """
    if unknown := [name for name in given if name not in NODE_OPTIONS]:
        raise UsageError(f"unknown option {unknown[0]} (supported: {', '.join(NODE_OPTIONS)})")
    named = {name.lower(): value for name, value in given.items()}
    return node_from(named | {"path": path})


def node_rows(spark: SparkSession, given: Mapping[str, str]) -> DataFrame:
    """Return the current rows of a node, for these options.

    Raises: UsageError, also if some rows are only in the lake of the node; RetryError.
    """
    options = parse_options(given)
    assert options.node is not None, "options name a node"
    with closing(NodeOrigin(options.node, options)) as origin:
        since_us = origin.tiered_before()
    if options.since_us < since_us:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=since_us)
        raise UsageError(
            f"the store of {options.place} begins at {moment.isoformat()}; older rows are in its "
            "lake, which is read on the machine of the data directory: read later rows"
        )
    return spark.read.format("siltstone").options(**given).load()


def node_database(node: Node, database: str) -> str:
    """Return the name of the database: the given one, or the only one.

    Raises: UsageError.
    """
    with NodeClient(node) as client:
        names: list[str] = [info.descriptor.path[0].decode() for info in client.flights()]
    if database in names:
        return database
    if database or len(names) != 1:
        meant = f"database {database!r} does not exist" if database else "database is missing"
        there = ", ".join(names) or "none"
        raise UsageError(f"{meant} (found at {node.url}: {there})")
    return names[0]
