"""The settings of the tier job that the broker runs beside itself."""

from __future__ import annotations

from pydantic import Field

from siltstone.broker.settings.kinds import Count, Seconds, Settings


class TierProcessSettings(Settings):
    """Delta tables: the broker runs `siltstone pipeline tier --continuous` for its database, and
    starts it again if it ends. It needs `pip install "siltstone[spark]"`.
    """

    continuous: bool = Field(default=False, description="Whether the broker runs the job.")
    freshness: Seconds = Field(
        default=2.0, ge=0.05, description="Approximate time after which a row is in its table."
    )
    keep_hours: Count = Field(
        default=168, ge=0, description="Hours that versions of the tables are kept."
    )
    master: str = Field(default="local[2]", description="Where Spark runs.")
    memory: str = Field(default="1g", description="Memory of the Spark driver.")
