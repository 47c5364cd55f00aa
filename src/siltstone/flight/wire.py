"""The JSON messages of Flight: requests, tickets and errors.

    a read          descriptor command: the options of the Spark source, as {"filter": "plant/#"};
                    or descriptor path: database, or database and topic filter
    a step          the same with "between": {"start": offsets, "end": offsets, "identity": …}
    a ticket        {"version": 1, "options": {…}, "spans": [[shard, generation, start, stop], …],
                    "identity": …}
    an append       descriptor command: {"append": {"database", "durability", "producer",
                    "sequence"}}; each batch is answered by {"rows", "duplicate"}
    rows to stage   {"stage": {"write", "batch"}}; answered by {"name"}
    a link          action "manage-begin", empty; answered by the id of the link, for a program that
                    manages the store; action "manage-end": the id
    a request       action "manage": the id, a line feed, and a request of the control socket;
                    answered as the control socket does
    an error        extra info: {"error": class, "text": message}

A ticket names rows by their serials, so it means the same rows after a restart. It grants no
rights: they are checked again when it is used. The identity is that of the database; earlier
versions of Siltstone send none.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from siltstone import errors
from siltstone.errors import SiltstoneError, UsageError
from siltstone.scan.plan import Admitted
from siltstone.store.log.read.selection import SlabExtent
from siltstone.store.slab.identity import DatabaseIdentity
from siltstone.store.slab.manifest import SlabId

VERSION: Final = 1
BEGIN: Final = "manage-begin"
REQUEST: Final = "manage"
END: Final = "manage-end"
_SPAN_FIELDS: Final = 4
_SHARD_DIGITS_MAX: Final = 10
# The classes of the errors of a server. Facts do not travel: some arrive as their base class.
_ERRORS: Final[Mapping[str, type[SiltstoneError]]] = {
    **errors.BY_NAME,
    "QuotaExceededError": errors.RetryError,
    "StorageFullError": errors.RetryError,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SerialSpan:
    """The serials of one slab that belong to a ticket."""

    slab: SlabId
    serials: range


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTicket:
    """The rows of one endpoint of a plan."""

    options: Mapping[str, str]
    spans: tuple[SerialSpan, ...]
    identity: str = ""

    def encode(self) -> bytes:
        """Return the encoded ticket."""
        spans = [
            [span.slab.shard, span.slab.generation, span.serials.start, span.serials.stop]
            for span in self.spans
        ]
        values = {"version": VERSION, "options": dict(self.options), "spans": spans}
        return dump(values | {"identity": self.identity} if self.identity else values)


def decode_ticket(encoded: bytes) -> ReadTicket:
    """Decode a ticket. Raises: UsageError."""
    values = load(encoded, "ticket")
    if values.get("version") != VERSION:
        raise UsageError(f"unknown version {values.get('version')!r} of a ticket")
    spans = values.get("spans")
    if not isinstance(spans, list) or not all(_is_span(span) for span in spans):
        raise UsageError("a ticket must have spans of serials")
    return ReadTicket(
        options=options_in(values.get("options")),
        spans=tuple(
            SerialSpan(slab=SlabId(span[0], span[1]), serials=range(span[2], span[3]))
            for span in spans
        ),
        identity=identity_in(values),
    )


def identity_in(values: Mapping[str, Any]) -> str:
    """Return the identity in a request; empty if there is none. Raises: UsageError."""
    identity = values.get("identity", "")
    if not isinstance(identity, str):
        raise UsageError(f"identity must be text: identity={identity!r}")
    return identity


def identity_to_json(identity: DatabaseIdentity) -> dict[str, Any]:
    """Return an identity as plain values, to be merged with others."""
    return {"identity": identity.text, "identified": identity.identified}


def identity_from_json(values: Mapping[str, Any]) -> DatabaseIdentity:
    """Read the values of `identity_to_json`; nodes of earlier versions send none."""
    return DatabaseIdentity(identity_in(values), identified=values.get("identified") is True)


def _is_span(span: object) -> bool:
    return (
        isinstance(span, list)
        and len(span) == _SPAN_FIELDS
        and all(type(number) is int and 0 <= number <= 1 << 64 for number in span)
    )


def options_in(values: object) -> dict[str, str]:
    """Return options as text, from JSON that may have numbers and lists. Raises: UsageError."""
    if not isinstance(values, dict):
        raise UsageError("the options of a read must be a JSON object")
    try:
        return {
            name: value if isinstance(value, str) else json.dumps(value)
            for name, value in values.items()
        }
    except (RecursionError, ValueError) as exc:
        raise UsageError(
            "an option is nested too deeply, or has a number with too many digits"
        ) from exc


def positions_in(values: object) -> dict[int, int]:
    """Return serials by shard. Raises: UsageError."""
    if not isinstance(values, dict) or not all(
        name.isdecimal()
        and len(name) <= _SHARD_DIGITS_MAX
        and type(number) is int
        and -(1 << 63) <= number < 1 << 63
        for name, number in values.items()
    ):
        raise UsageError("a position must be a JSON object of serials by shard")
    return {int(name): number for name, number in values.items()}


def extents_to_json(extents: Iterable[SlabExtent]) -> list[list[int | None]]:
    """Return extents as plain values."""
    return [
        [
            extent.slab.shard,
            extent.slab.generation,
            extent.serials.start,
            extent.serials.stop,
            extent.since_us,
            extent.until_us,
        ]
        for extent in extents
    ]


def extents_from_json(values: Iterable[list[Any]]) -> list[SlabExtent]:
    """Read the values of `extents_to_json`."""
    return [
        SlabExtent(
            slab=SlabId(shard, generation),
            serials=range(start, stop),
            since_us=since_us,
            until_us=until_us,
        )
        for shard, generation, start, stop, since_us, until_us in values
    ]


def admitted_to_json(admitted: Admitted) -> dict[str, Any]:
    """Return the end of a step as plain values."""
    return {"ends": {str(key): end for key, end in admitted.ends.items()}, "rows": admitted.rows}


def dump(values: object) -> bytes:
    """Return plain values as JSON."""
    return json.dumps(values, separators=(",", ":")).encode()


def load(encoded: bytes, what: str) -> dict[str, Any]:
    """Read a JSON object. Raises: UsageError."""
    try:
        values = json.loads(encoded)
    except RecursionError as exc:
        raise UsageError(f"{what} is nested too deeply") from exc
    except ValueError as exc:
        raise UsageError(f"{what} must be JSON: {exc}") from exc
    if not isinstance(values, dict):
        raise UsageError(f"{what} must be a JSON object")
    return values


def error_info(error: SiltstoneError) -> bytes:
    """Return an encoded error."""
    return dump({"error": type(error).__name__, "text": str(error)})


def error_from(info: bytes) -> SiltstoneError | None:
    """Return the decoded error; None if there is none."""
    try:
        values = json.loads(info)
        name, text = values["error"], values["text"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return _ERRORS.get(name, SiltstoneError)(text)
