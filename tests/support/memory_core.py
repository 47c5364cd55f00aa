"""A broker core without a store, its state as records, and a new core from them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from siltstone.broker.access.access import Access
from siltstone.broker.broker import Broker
from siltstone.broker.retained.messages import RetainedMessages
from siltstone.broker.snapshots.capture import Capture
from siltstone.broker.snapshots.load import SnapshotLoad
from siltstone.snapshot.format.contents import BoundedContents
from siltstone.snapshot.format.records import Record
from tests.support.broker_core import OPEN, Core
from tests.support.snapshots import in_memory


class MemoryCore(Core):
    """A core without a store."""

    def __init__(self, *, access: Access = OPEN, **limits: Any) -> None:
        super().__init__(access=access, **limits)
        settings = self.broker.settings
        self.broker = Broker(
            settings,
            database=None,
            retained=RetainedMessages(None, self.clock, settings.limits),
            access=access,
            clock=self.clock,
            shell=self.shell,
        )

    def state(self) -> list[Record]:
        """Return the current state."""
        capture = Capture(self.broker)
        return finished(capture)

    def load(self, records: Iterable[Record], contents: BoundedContents | None = None) -> None:
        """Load the state of another core."""
        revival = SnapshotLoad(self.broker, contents or in_memory())
        for record in records:
            revival.apply(record)
        revival.finish()
        self.run()

    def restarted(
        self, *, after: float = 0.0, contents: BoundedContents | None = None, **limits: Any
    ) -> MemoryCore:
        """Return a core with the state of this one, a number of seconds later."""
        core = MemoryCore(access=self.broker.access, **limits)
        # The wall clock continues; the time of the loop starts again.
        core.clock.jump((self.clock.now_us() - core.clock.now_us()) / 1_000_000 + after)
        core.load(self.state(), contents)
        return core


def finished(capture: Capture, piece: int = 3) -> list[Record]:
    """Return all records of a capture."""
    records = list(capture.retained_records())
    while (taken := capture.step(piece)) is not None:
        for captured in taken:
            records.extend(capture.records(captured))
    capture.close()
    return records
