"""The lines of the control socket: requests, responses and errors.

    a request     {"do": name, …}, one line of JSON; with "bytes": N, N bytes follow the line
    a response    {"ok": …}, one line; with "bytes": N, N bytes follow the line
    an error      {"error": text, "failed": …, "kind": class, "facts": {…}}

`failed` says that the request was valid. `kind` and `facts` restore the error. Without them it is a
RetryError if it `failed`, else a UsageError; brokers of version 0.1.0 send neither.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Final

from siltstone import errors
from siltstone.errors import (
    CorruptionError,
    DiskError,
    PreconditionError,
    QuotaExceededError,
    RetryError,
    SiltstoneError,
    StorageFullError,
    Unmet,
    UsageError,
)

# A line is decoded in one step on the event loop of the broker, so its size is limited.
LINE_MAX: Final = 1 << 20
# The largest bytes after a line: an append, or the changes of a transaction.
PAYLOAD_MAX: Final = 256 << 20


@dataclass(frozen=True, slots=True)
class Packed:
    """A value for JSON, and bytes that follow it."""

    value: Any
    payload: bytes = b""


def encode_line(document: Mapping[str, Any]) -> bytes:
    """Return one line of JSON."""
    return json.dumps(document).encode() + b"\n"


def encode_error(error: SiltstoneError) -> bytes:
    """Return an error as a line."""
    document: dict[str, Any] = {"error": str(error)}
    if not isinstance(error, UsageError):
        document["failed"] = True
    if type(error) not in (UsageError, RetryError):
        document["kind"] = type(error).__name__
    if facts := _facts(error):
        document["facts"] = facts
    return encode_line(document)


def decode_error(document: Mapping[str, Any]) -> SiltstoneError:
    """Return the error of a response."""
    text = str(document["error"])
    plain = errors.BY_NAME.get(str(document.get("kind")))
    if plain is not None:
        return plain(text)
    error = _restored(text, document)
    # The broker may have added something to the message.
    error.args = (text,)
    return error


def _restored(text: str, document: Mapping[str, Any]) -> SiltstoneError:
    facts = document.get("facts") or {}
    match document.get("kind"):
        case "StorageFullError":
            return StorageFullError(PurePath(facts["path"]), needed_bytes=facts["needed_bytes"])
        case "QuotaExceededError":
            return QuotaExceededError(**facts)
        case "PreconditionError" | "FencedError" as kind:
            unmet = tuple(_unmet(each) for each in facts["unmet"])
            return (errors.FencedError if kind == "FencedError" else PreconditionError)(unmet)
        case "CorruptionError":
            path, offset = PurePath(facts["path"]), facts["offset"]
            return CorruptionError(facts["reason"], path=path, offset=offset)
        case "DiskError":
            path = PurePath(facts["path"])
            return DiskError(path, facts["operation"], facts["reason"], errno=facts["errno"])
        case None:
            return RetryError(text) if document.get("failed") else UsageError(text)
        case _:
            # An error of a newer broker.
            return SiltstoneError(text) if document.get("failed") else UsageError(text)


def _facts(error: SiltstoneError) -> dict[str, Any]:
    match error:
        case StorageFullError():
            return {"path": str(error.path), "needed_bytes": error.needed_bytes}
        case QuotaExceededError():
            return {
                "database": error.database,
                "used_bytes": error.used_bytes,
                "quota_bytes": error.quota_bytes,
                "needed_bytes": error.needed_bytes,
            }
        case PreconditionError():
            return {"unmet": [_unmet_fields(each) for each in error.unmet]}
        case CorruptionError():
            return {"reason": error.reason, "path": str(error.path), "offset": error.offset}
        case DiskError():
            return {
                "path": str(error.path),
                "operation": error.operation,
                "reason": error.reason,
                "errno": error.errno,
            }
        case _:
            return {}


def _unmet_fields(unmet: Unmet) -> dict[str, Any]:
    return {
        "topic": unmet.topic,
        "time_us": unmet.time_us,
        "present": unmet.present,
        "expected": _text(unmet.expected),
        "found": _text(unmet.found),
    }


def _unmet(fields: Mapping[str, Any]) -> Unmet:
    return Unmet(
        topic=fields["topic"],
        time_us=fields["time_us"],
        present=fields["present"],
        expected=_bytes(fields["expected"]),
        found=_bytes(fields["found"]),
    )


def _text(value: bytes | None) -> str | None:
    return None if value is None else b64encode(value).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text)
