"""What the demonstration measures on its way; the picture shows it."""

from __future__ import annotations

from dataclasses import dataclass, field

Points = list[tuple[float, float]]


@dataclass(slots=True)
class Story:
    """What was measured. Times are seconds since 1970."""

    acknowledged: Points = field(default_factory=list)
    latencies_ms: Points = field(default_factory=list)
    received: Points = field(default_factory=list)
    backlog: int = 0
    killed_at: float = 0.0
    back_at: float = 0.0
    sensor: str = ""
    values: Points = field(default_factory=list)
