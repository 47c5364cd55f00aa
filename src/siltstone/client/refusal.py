"""What a server refuses, in words, and whether it is worth asking again."""

from __future__ import annotations

import ssl
from typing import Final

from siltstone.errors import SiltstoneError
from siltstone.mqtt.properties import NO_PROPERTIES, Properties
from siltstone.mqtt.reason import Reason

# Reasons that pass: the same client may be welcome a moment later.
_PASSING: Final = frozenset(
    {
        Reason.NORMAL_DISCONNECTION,
        Reason.UNSPECIFIED_ERROR,
        Reason.IMPLEMENTATION_SPECIFIC_ERROR,
        Reason.SERVER_UNAVAILABLE,
        Reason.SERVER_BUSY,
        Reason.SERVER_SHUTTING_DOWN,
        Reason.KEEP_ALIVE_TIMEOUT,
        Reason.MESSAGE_RATE_TOO_HIGH,
        Reason.QUOTA_EXCEEDED,
        Reason.CONNECTION_RATE_EXCEEDED,
        Reason.MAXIMUM_CONNECT_TIME,
    }
)


class RefusedError(SiltstoneError):
    """The server said no; `reason` is its own, None where it had none to give."""

    def __init__(self, message: str, *, reason: Reason | None = None) -> None:
        super().__init__(message)
        self.reason = reason

    @property
    def passing(self) -> bool:
        """Whether the same request may be granted later."""
        return self.reason in _PASSING


def refused(what: str, reason: Reason, properties: Properties = NO_PROPERTIES) -> RefusedError:
    """Return the error of what a server refused, with all it told."""
    told = f", it says {properties.reason_string!r}" if properties.reason_string else ""
    if properties.server_reference:
        told += f", use {properties.server_reference!r} instead"
    return RefusedError(f"{what}: {reason_words(reason)}{told}", reason=reason)


def reason_words(reason: Reason) -> str:
    """Return a reason by name and number."""
    name = reason.name.lower().replace("_", " ").replace("qos", "QoS")
    # Zero has many names; as a reason to end it means this one.
    name = name if reason else "normal disconnection"
    return f"{name} ({reason:#04x})"


def system_words(error: Exception) -> str:
    """Return what the operating system or TLS says about a connection."""
    if isinstance(error, ssl.SSLError):
        # Those that Python makes itself lack these attributes.
        message = getattr(error, "verify_message", "") or getattr(error, "reason", None) or ""
        if message:
            return str(message).lower().replace("_", " ")
    text = (isinstance(error, OSError) and error.strerror) or str(error)
    return text[:1].lower() + text[1:] or type(error).__name__
