"""The version of Siltstone, and whether the hot modules are compiled."""

from __future__ import annotations

from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from typing import Final

__version__: Final = "0.2.0.dev0"


def form() -> str:
    """Return "compiled" or "pure Python", by the file that an import of a hot module loads.

    Either all hot modules are compiled or none, so it is enough to check one.
    """
    spec = find_spec("siltstone.store.segment.frame")
    compiled = spec is not None and (spec.origin or "").endswith(tuple(EXTENSION_SUFFIXES))
    return "compiled" if compiled else "pure Python"
