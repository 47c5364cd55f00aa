"""The origin of a query, by its options: the directory that `path` names, or the node of `url`."""

from __future__ import annotations

from siltstone.flight.origin import NodeOrigin
from siltstone.fs.api import FileSystem
from siltstone.scan.options import ReadOptions
from siltstone.scan.origin import DirectoryOrigin, Origin


def origin_of(fs: FileSystem, options: ReadOptions) -> Origin:
    """Return where the rows come from; nothing is opened before it is asked."""
    if options.node is not None:
        return NodeOrigin(options.node, options)
    return DirectoryOrigin(fs, options)
