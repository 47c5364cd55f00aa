"""Found by Spark itself, which looks for modules named so: `format("siltstone")` just works."""

from siltstone.pipeline.source.source import SiltstoneSource as DefaultSource

__all__ = ["DefaultSource"]
