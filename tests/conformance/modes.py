"""Brokers of every kind that keeps sessions in its own way, for what must hold in all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from siltstone.mqtt.wire import Version
from tests.conformance.versions import kept
from tests.support.broker_core import Core, Wire
from tests.support.durable_core import DurableCore
from tests.support.memory_core import MemoryCore

MODES = ("volatile", "memory", "durable")

MakeCore = Callable[..., Core]


@pytest.fixture(params=MODES)
def make_core(request: pytest.FixtureRequest) -> Iterator[MakeCore]:
    """Return what makes a broker with some limits."""
    with ExitStack() as made:

        def make(**limits: Any) -> Core:
            match request.param:
                case "durable":
                    core = DurableCore(**limits)
                    made.callback(core.close)
                    return core
                case "memory":
                    return MemoryCore(**limits)
                case _:
                    return Core(**limits)

        yield make


def come(core: Core, client_id: str, version: Version, **fields: Any) -> Wire:
    """Connect with a session that outlives its connection where the broker keeps any."""
    lasting = {} if type(core) is Core else kept(version)
    return core.connect(client_id, version=version, **lasting, **fields)
