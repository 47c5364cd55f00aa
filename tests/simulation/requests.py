"""What publishers send to sites."""

from __future__ import annotations

from dataclasses import dataclass

from siltstone.store.writer.replication.messages import ProducerCall


@dataclass
class Request:
    """A call, a question ("ask") or the end of a producer ("close")."""

    kind: str
    publisher: str
    session: int
    id: int
    number: int = 0
    producer: bytes = b""
    call: ProducerCall | None = None
    # For a question: the highest index that was acknowledged when it was asked.
    needed: int = 0
