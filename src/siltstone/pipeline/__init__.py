"""The store as a Spark table: the public names, and nothing else."""

from siltstone.pipeline.answers import count, explain
from siltstone.pipeline.session import start_session
from siltstone.pipeline.source import SiltstoneSource, register

__all__ = ["SiltstoneSource", "count", "explain", "register", "start_session"]
