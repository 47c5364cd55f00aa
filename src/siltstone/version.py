"""Which Siltstone this is: its version, and whether the hot modules run compiled."""

from __future__ import annotations

from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from typing import Final

__version__: Final = "0.2.0.dev0"


def form() -> str:
    """Return "compiled" or "pure Python", by the file that an import of a hot module loads.

    All hot modules are compiled or none is, so one of them speaks for the rest.
    """
    spec = find_spec("siltstone.store.segment.frame")
    compiled = spec is not None and (spec.origin or "").endswith(tuple(EXTENSION_SUFFIXES))
    return "compiled" if compiled else "pure Python"
