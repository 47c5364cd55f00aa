"""Siltstone: a durable message store that speaks MQTT and is read by Spark.

The public names are imported on first use. A program that needs only a part of the package, such as
the command that publishes a message, therefore does not import all of it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from siltstone.public import *  # noqa: F403
    from siltstone.public import Position
    from siltstone.public import __all__ as __all__

    FeedPosition = Position
else:
    # Names of version 0.1.0.
    _RENAMED = {"FeedPosition": "Position"}

    def __getattr__(name: str) -> object:
        # Python itself looks up names with a leading underscore, and `from siltstone import …`
        # looks up modules.
        if name == "__all__" or not name.startswith("_"):
            public = import_module("siltstone.public")
            known = _RENAMED.get(name, name)
            if name == "__all__" or known in public.__all__:
                # Later lookups find the name without a call of this function.
                value = globals()[name] = getattr(public, known)
                return value
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *import_module("siltstone.public").__all__})
