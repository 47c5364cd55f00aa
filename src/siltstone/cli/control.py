"""How a command speaks to the broker that runs on a data directory."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from siltstone.broker.control.socket import CONTROL
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


def ask_broker(data: Path, request: Mapping[str, Any], timeout: float = _TIMEOUT_SECONDS) -> Any:
    """Ask something of the broker; return its answer.

    Raises: UsageError; RetryError where it failed, or gave no answer in time.
    """
    with _connected(data) as line:
        line.settimeout(timeout)
        return _ask(line, request)


def while_still(data: Path, look: Callable[[], None]) -> bool:
    """Look at the store while the broker stores nothing; tell whether it was so until the end.

    Raises: RetryError, UsageError; what the look raises.
    """
    with _connected(data) as line:
        is_still = _ask(line, {"do": "hold"})
        look()
        return bool(_ask(line, {"do": "release"}) and is_still)


@contextmanager
def pinned(data: Path) -> Iterator[None]:
    """Let the broker reclaim no rows meanwhile. Raises: RetryError."""
    with _connected(data) as line:
        # A broker of an earlier version does not know the request, and reclaims nothing.
        with suppress(UsageError):
            _ask(line, {"do": "pin"})
        yield


@contextmanager
def _connected(data: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.settimeout(_TIMEOUT_SECONDS)
        try:
            line.connect(str(data / CONTROL))
        except OSError as exc:
            raise RetryError(f"the broker did not answer: {exc}") from exc
        yield line


def _ask(line: socket.socket, request: Mapping[str, Any]) -> Any:
    try:
        line.sendall(json.dumps(request).encode() + b"\n")
        with line.makefile("rb") as answers:
            answer = json.loads(answers.readline())
    except (OSError, ValueError) as exc:
        raise RetryError(f"the broker did not answer: {exc}") from exc
    if answer.get("failed"):
        raise RetryError(answer["error"])
    if "error" in answer:
        raise UsageError(answer["error"])
    return answer["ok"]
