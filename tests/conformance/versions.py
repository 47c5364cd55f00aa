"""What tests of both versions share."""

from __future__ import annotations

from typing import Any

import pytest

from siltstone.mqtt.packets import Disconnect
from siltstone.mqtt.reason import Reason
from siltstone.mqtt.wire import Version
from tests.support.broker_core import V5, Wire

both_versions = pytest.mark.parametrize("version", list(Version))


def kept(version: Version = V5, seconds: int = 3600) -> dict[str, Any]:
    """Return the fields of a CONNECT whose session outlives its connection."""
    if version is V5:
        return {"clean_start": False, "session_expiry_interval": seconds}
    return {"clean_start": False}


def told(wire: Wire) -> list[Reason]:
    """Return why the server has ended a connection; it must have done so, and said no more."""
    answer = wire.take()
    reasons = [packet.reason for packet in answer if isinstance(packet, Disconnect)]
    assert (wire.is_closed, len(reasons)) == (True, len(answer)), answer
    return reasons


def in_v5(version: Version, reason: Reason) -> list[Reason]:
    """Return what the server must say of a reason: 3.1.1 closes without a word."""
    return [reason] if version is V5 else []
