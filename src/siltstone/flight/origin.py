"""The source of the rows of a query on a node: the node plans, tickets fetch the rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from siltstone.flight.client import NodeClient
from siltstone.flight.wire import extents_from_json, identity_from_json, load, positions_in
from siltstone.fs.api import FileSystem
from siltstone.scan.columns.batches import complete, fetched_columns
from siltstone.scan.node import Node
from siltstone.scan.options import ReadOptions, StartTimes, request_options
from siltstone.scan.plan import Admitted
from siltstone.scan.survey import Plan, PlanReport
from siltstone.store.feed.position import START, Position
from siltstone.store.log.read.selection import SlabExtent
from siltstone.store.slab.identity import DatabaseIdentity


@dataclass(frozen=True, slots=True)
class RemotePortion:
    """The rows of one ticket; the reader connects to the node of the options."""

    ticket: bytes

    def batches(
        self, fs: FileSystem, options: ReadOptions, schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        """Fetch the rows, and add the columns that the node leaves to its readers."""
        del fs
        assert options.node is not None
        with NodeClient(options.node) as client:
            for batch in client.get(self.ticket, continues=options.fails_on_loss):
                yield complete(batch, schema)


class NodeOrigin:
    """A database of a node; it keeps one connection until `close`."""

    def __init__(self, node: Node, options: ReadOptions) -> None:
        self._node = node
        fetched = replace(options, columns=fetched_columns(options.columns))
        self._request = request_options(fetched)
        self._client: NodeClient | None = None
        self._identity: DatabaseIdentity | None = None

    def extents(self, reached: Position = START) -> list[SlabExtent]:
        request = {"options": self._request, "reached": reached.to_text()}
        answer = self._act("extents", request)
        self._identity = identity_from_json(answer)
        return extents_from_json(answer["extents"])

    def identity(self) -> DatabaseIdentity:
        if self._identity is None:
            self._identity = identity_from_json(self._act("extents", {"options": self._request}))
        return self._identity

    def tiered_before(self) -> int:
        """Return the time before which rows are only in the lake of the node; 0 if none are."""
        answer = self._act("extents", {"options": self._request})
        tiered = positions_in(answer.get("tiered", {}))
        first: dict[int, SlabExtent] = {}
        for extent in extents_from_json(answer["extents"]):
            known = first.setdefault(extent.slab.shard, extent)
            if extent.serials.start < known.serials.start:
                first[extent.slab.shard] = extent
        return max(
            (
                extent.since_us
                for shard, extent in first.items()
                if extent.serials.start > 0 and tiered.get(shard, 0) > 0
            ),
            default=0,
        )

    def seek(self, times: StartTimes) -> dict[int, int]:
        request = {"options": self._request, "times": times.to_text()}
        return positions_in(self._act("seek", request)["starts"])

    def plan_batch(self) -> Plan[RemotePortion]:
        return self._plan(self._request)

    def plan_micro_batch(
        self, start: Mapping[int, int], end: Mapping[int, int]
    ) -> Plan[RemotePortion]:
        between = {"start": _by_text(start), "end": _by_text(end)}
        whose = {"identity": self.identity().text}
        return self._plan(self._request | {"between": between | whose})

    def admit(
        self, sought: Mapping[int, range], *, rows_max: int | None, bytes_max: int | None
    ) -> Admitted:
        request = {
            "options": self._request,
            "start": _by_text({shard: serials.start for shard, serials in sought.items()}),
            "end": _by_text({shard: serials.stop for shard, serials in sought.items()}),
            "rows": rows_max,
            "bytes": bytes_max,
        }
        answer = self._act("admit", request)
        return Admitted(ends=positions_in(answer["ends"]), rows=answer["rows"])

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _plan(self, request: Mapping[str, Any]) -> Plan[RemotePortion]:
        info = self._connected().plan(request)
        report = load(info.app_metadata, "report")
        return Plan(
            partitions=[RemotePortion(endpoint.ticket.ticket) for endpoint in info.endpoints],
            report=PlanReport(**report),
        )

    def _act(self, name: str, request: object) -> dict[str, Any]:
        return self._connected().ask(name, request)

    def _connected(self) -> NodeClient:
        if self._client is None:
            self._client = NodeClient(self._node)
        return self._client


def _by_text(numbers: Mapping[int, int]) -> dict[str, int]:
    return {str(shard): number for shard, number in numbers.items()}
