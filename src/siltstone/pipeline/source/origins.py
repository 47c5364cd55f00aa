"""The origin of a query, from its options: the directory of `path`, or the node of `url`."""

from __future__ import annotations

from siltstone.flight.origin import NodeOrigin
from siltstone.fs.api import FileSystem
from siltstone.scan.options import ReadOptions
from siltstone.scan.origin import DirectoryOrigin, Origin


def origin_of(fs: FileSystem, options: ReadOptions) -> Origin:
    """Return the origin of the rows; it opens nothing before its first call."""
    if options.node is not None:
        return NodeOrigin(options.node, options)
    return DirectoryOrigin(fs, options)
