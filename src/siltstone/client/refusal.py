"""Errors for refusals of a server, their text, and whether to try again."""

from __future__ import annotations

import re
import ssl
from typing import Final

from siltstone.errors import SiltstoneError
from siltstone.mqtt.properties import NO_PROPERTIES, Properties
from siltstone.mqtt.reason import Reason

# Temporary reasons: the server may accept the same client later.
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
    """The server refused a request; `reason` is its reason code, None if it gave none."""

    def __init__(self, message: str, *, reason: Reason | None = None) -> None:
        super().__init__(message)
        self.reason = reason

    @property
    def passing(self) -> bool:
        """Whether the server may accept the same request later."""
        return self.reason in _PASSING


def refused(what: str, reason: Reason, properties: Properties = NO_PROPERTIES) -> RefusedError:
    """Return the error for a refusal, with all information from the server."""
    told = f", it says {properties.reason_string!r}" if properties.reason_string else ""
    if properties.server_reference:
        told += f", use {properties.server_reference!r} instead"
    return RefusedError(f"{what}: {reason_words(reason)}{told}", reason=reason)


def reason_words(reason: Reason) -> str:
    """Return the name and the number of a reason code."""
    name = reason.name.lower().replace("_", " ").replace("qos", "QoS")
    # Code 0 has several names; in a DISCONNECT it means this one.
    name = name if reason else "normal disconnection"
    return f"{name} ({reason:#04x})"


def system_words(error: Exception) -> str:
    """Return the text of an error from the operating system or from TLS."""
    if isinstance(error, ssl.SSLError):
        # Errors that Python creates itself do not have these attributes.
        message = getattr(error, "verify_message", "") or getattr(error, "reason", None) or ""
        if message:
            return str(message).lower().replace("_", " ")
    text = (isinstance(error, OSError) and error.strerror) or str(error)
    if not text and isinstance(error, ConnectionError):
        # ConnectionResetError has no text where a transport made it: "connection reset".
        name = type(error).__name__.removesuffix("Error")
        text = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()
    return text[:1].lower() + text[1:] or type(error).__name__
