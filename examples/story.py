"""The measurements of the demonstration, which the picture shows."""

from __future__ import annotations

from dataclasses import dataclass, field

Points = list[tuple[float, float]]


@dataclass(slots=True)
class Story:
    """The measurements. Times are seconds since 1970."""

    acknowledged: Points = field(default_factory=list)
    latencies_ms: Points = field(default_factory=list)
    received: Points = field(default_factory=list)
    backlog: int = 0
    killed_at: float = 0.0
    back_at: float = 0.0
    sensor: str = ""
    values: Points = field(default_factory=list)
