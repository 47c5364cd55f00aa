from __future__ import annotations

from siltstone.flight.origin import NodeOrigin
from siltstone.fs.memory import MemoryFileSystem
from siltstone.pipeline.source.origins import origin_of
from siltstone.scan.node import Node
from siltstone.scan.options import ReadOptions
from siltstone.scan.origin import DirectoryOrigin


def test_rows_come_from_the_directory_or_the_node_that_is_named() -> None:
    fs = MemoryFileSystem()
    assert isinstance(origin_of(fs, ReadOptions(path="/data")), DirectoryOrigin)
    node = Node(url="grpc+tcp://127.0.0.1:1")
    assert isinstance(origin_of(fs, ReadOptions(node=node)), NodeOrigin)
