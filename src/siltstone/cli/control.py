"""How a command speaks to the broker that runs on a data directory."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from siltstone.broker.control import CONTROL
from siltstone.errors import RetryError, UsageError

_TIMEOUT_SECONDS: Final = 60.0


def is_served(data: Path) -> bool:
    """Tell whether a broker listens to commands in a data directory."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_TIMEOUT_SECONDS)
        try:
            probe.connect(str(data / CONTROL))
        except OSError:
            return False
        return True


def ask_broker(data: Path, request: Mapping[str, Any]) -> Any:
    """Ask something of the broker; return its answer. Raises: UsageError, RetryError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.settimeout(_TIMEOUT_SECONDS)
        try:
            line.connect(str(data / CONTROL))
            line.sendall(json.dumps(request).encode() + b"\n")
            with line.makefile("rb") as answers:
                answer = json.loads(answers.readline())
        except (OSError, ValueError) as exc:
            raise RetryError(f"the broker did not answer: {exc}") from exc
    if "error" in answer:
        raise UsageError(answer["error"])
    return answer["ok"]
