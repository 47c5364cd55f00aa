"""Requests of a command to the broker that runs on a data directory."""

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


def is_served(data: Path, name: str = CONTROL) -> bool:
    """Return whether a broker accepts commands in a data directory, or listens on another socket
    there.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_TIMEOUT_SECONDS)
        try:
            probe.connect(str(data / name))
        except OSError:
            return False
        return True


def ask_broker(data: Path, request: Mapping[str, Any], timeout: float = _TIMEOUT_SECONDS) -> Any:
    """Send a request to the broker; return its answer.

    Raises: UsageError; RetryError if the broker failed, or did not answer in time.
    """
    with _connected(data) as line:
        line.settimeout(timeout)
        return _ask(line, request)


def while_still(data: Path, look: Callable[[], None]) -> bool:
    """Call `look` while the broker stores nothing; return whether the pause lasted until the end.

    Raises: RetryError, UsageError; any error of `look`.
    """
    with _connected(data) as line:
        is_still = _ask(line, {"do": "hold"})
        look()
        return bool(_ask(line, {"do": "release"}) and is_still)


@contextmanager
def pinned(data: Path) -> Iterator[None]:
    """Prevent the broker from reclaiming rows in this context. Raises: RetryError."""
    with _connected(data) as line:
        # A broker of an earlier version does not know the request, and never reclaims rows.
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
