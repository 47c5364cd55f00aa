"""The options of the sink: parsed and checked once, then frozen."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from siltstone.errors import InvalidTopicError, UsageError
from siltstone.scan.ingest.columns import Given
from siltstone.scan.node import NODE_OPTIONS, Node, node_from
from siltstone.scan.options import plain_path
from siltstone.topic.grammar import check_topic

WRITE_OPTIONS: Final = ("path", *NODE_OPTIONS, "database", "topic", "publisher", "writeId")
# Options that Spark adds for a query, besides those of the user.
_OF_SPARK: Final = frozenset({"checkpointlocation", "queryname"})


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """The destination of rows, and the values for all of them."""

    path: str = ""
    node: Node | None = None
    database: str = ""
    given: Given = Given()  # noqa: RUF009 - it is frozen
    write_id: str = ""


def parse_write_options(options: Mapping[str, str]) -> WriteOptions:
    """Parse and check the options. Raises: UsageError."""
    given = {name.lower(): value for name, value in options.items()}
    known = {name.lower(): name for name in WRITE_OPTIONS}
    for name in given:
        if name not in known and name not in _OF_SPARK:
            near = difflib.get_close_matches(name, known, 1)
            listed = ", ".join(WRITE_OPTIONS)
            hint = f"did you mean {known[near[0]]}?" if near else f"supported: {listed}"
            raise UsageError(f"unknown option {name} of a write; {hint}")
    node = node_from(given)
    if node is None and not given.get("path"):
        raise UsageError(
            "path is missing: set path to the data directory of the store, or url to a node"
        )
    topic = given.get("topic", "")
    if topic:
        try:
            check_topic(topic.encode())
        except InvalidTopicError as exc:
            raise UsageError(f"option topic must be a topic: {exc}") from exc
    return WriteOptions(
        path=plain_path(given.get("path", "")),
        node=node,
        database=given.get("database", "").strip(),
        given=Given(topic=topic, publisher=given.get("publisher", "")),
        write_id=given.get("writeid", "").strip(),
    )
