"""Positions in a database: for each shard the serial of the next row, to and from JSON.

    {"version": 2, "identity": "9f…", "shards": {"0": 1200, "1": 1187}}

Spark keeps this text in a checkpoint. The identity is that of the database: a later database of the
same name has another identity, and its serials start at 0 again. Version 1 has no identity. It is
found in checkpoints of earlier versions of Siltstone, and in options of users who mean the current
database.

Users write this text too, as startingOffsets and endingOffsets. As in Kafka's options, -2 means the
earliest and -1 the latest row. A shard that a position does not name is at its earliest row: shards
may be added while a query runs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from siltstone.errors import UsageError
from siltstone.store.log.read.selection import SlabExtent
from siltstone.store.slab.identity import UNIDENTIFIED

VERSION: Final = 2
_WITHOUT_IDENTITY: Final = 1
EARLIEST: Final = -2
LATEST: Final = -1
_SERIAL_MAX: Final = 1 << 63
_DIGITS_MAX: Final = 10
_SHOWN_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class Offsets:
    """Serials by shard; shards that are not named are at `default`.

    The identity is that of the database. It is None if a user gave none, and empty in a checkpoint
    of an earlier version.
    """

    serials: Mapping[int, int]
    default: int = EARLIEST
    identity: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain values, sorted by shard: Spark compares positions as text."""
        shards = {str(shard): serial for shard, serial in sorted(self.serials.items())}
        if not self.identity:
            return {"version": _WITHOUT_IDENTITY, "shards": shards}
        return {"version": VERSION, "identity": self.identity, "shards": shards}

    def to_text(self) -> str:
        """Return the text of an option that `parse_offsets` reads."""
        if not self.serials:
            return "latest" if self.default == LATEST else "earliest"
        return json.dumps(self.to_json())


AT_EARLIEST: Final = Offsets({}, EARLIEST)
AT_LATEST: Final = Offsets({}, LATEST)


def shortened(text: str) -> str:
    """Return a text for an error message; a long text is cut."""
    return repr(text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…")


def parse_offsets(text: str, name: str, *, default: int) -> Offsets:
    """Parse the option of a user. Raises: UsageError."""
    word = text.strip()
    if word.lower() == "earliest":
        return AT_EARLIEST
    if word.lower() == "latest":
        return AT_LATEST
    try:
        values = json.loads(word)
    except (ValueError, RecursionError) as exc:
        raise UsageError(
            f"{name} must be earliest, latest, or JSON such as "
            f'{{"version": 1, "shards": {{"0": 1200}}}}: {name}={shortened(text)}'
        ) from exc
    return _offsets_of(values, name, default, unnamed=None)


def read_offsets(values: object, name: str) -> Offsets:
    """Read the plain values of a checkpoint. Raises: UsageError."""
    return _offsets_of(values, name, EARLIEST, unnamed=UNIDENTIFIED)


def _offsets_of(values: object, name: str, default: int, *, unnamed: str | None) -> Offsets:
    """Read plain values; `unnamed` is the identity of values without one."""
    if not isinstance(values, dict) or "version" not in values or "shards" not in values:
        raise UsageError(f"{name} must have version and shards: {values!r}")
    if values["version"] not in (VERSION, _WITHOUT_IDENTITY):
        raise UsageError(f"unknown version {values['version']!r} of {name}")
    known = {"version", "shards"} | ({"identity"} if values["version"] == VERSION else set())
    if set(values) != known:
        there = ", ".join(sorted(known))
        raise UsageError(f"{name} of this version must have {there} only: {values!r}")
    identity = values.get("identity", unnamed)
    if "identity" in values and not (isinstance(identity, str) and identity):
        raise UsageError(
            f"{name} must have the identity of a database as text: identity={identity!r}"
        )
    shards = values["shards"]
    if not isinstance(shards, dict):
        raise UsageError(f"{name} must have a serial for each shard: shards={shards!r}")
    serials: dict[int, int] = {}
    for shard, serial in shards.items():
        if not (isinstance(shard, str) and shard.isdecimal() and len(shard) <= _DIGITS_MAX):
            raise UsageError(f"{name} must have the numbers of shards as keys: shard={shard!r}")
        if type(serial) is not int or not EARLIEST <= serial < _SERIAL_MAX:
            raise UsageError(
                f"{name} must have a serial, -2 for earliest or -1 for latest: "
                f"shard={shard} serial={serial!r}"
            )
        serials[int(shard)] = serial
    return Offsets(serials, default, identity)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Requested serials that no slab has any more, or has not yet."""

    shard: int
    serials: range

    def __str__(self) -> str:
        return f"shard {self.shard}, serials {self.serials.start} to {self.serials.stop - 1}"


def bounds_of(extents: Sequence[SlabExtent]) -> dict[int, range]:
    """Return for each shard the range from its oldest serial to the one after its newest."""
    bounds: dict[int, range] = {}
    for extent in extents:
        shard, serials = extent.slab.shard, extent.serials
        known = bounds.get(shard, serials)
        bounds[shard] = range(min(known.start, serials.start), max(known.stop, serials.stop))
    return bounds


def resolve(offsets: Offsets, extents: Sequence[SlabExtent]) -> dict[int, int]:
    """Return the serial of each shard for these offsets and the current extents.

    Raises: UsageError for a shard that does not exist.
    """
    bounds = bounds_of(extents)
    if unknown := sorted(set(offsets.serials) - set(bounds)):
        raise UsageError(
            f"the offsets have a shard that is not in the database: shard={unknown[0]} "
            f"shards={len(bounds)}"
        )
    words = {
        shard: {EARLIEST: serials.start, LATEST: serials.stop} for shard, serials in bounds.items()
    }
    return {
        shard: words[shard].get(serial, serial)
        for shard in sorted(bounds)
        for serial in [offsets.serials.get(shard, offsets.default)]
    }


def find_losses(
    start: Mapping[int, int], end: Mapping[int, int], extents: Sequence[SlabExtent]
) -> list[Loss]:
    """Return the serials between two positions that are in no slab: dropped, or never written."""
    losses: list[Loss] = []
    for shard, stop in sorted(end.items()):
        reached = start.get(shard, stop)
        held = sorted(
            (extent.serials for extent in extents if extent.slab.shard == shard),
            key=lambda serials: serials.start,
        )
        for serials in held:
            if reached < min(serials.start, stop):
                losses.append(Loss(shard=shard, serials=range(reached, min(serials.start, stop))))
            reached = max(reached, serials.stop)
        if reached < stop:
            losses.append(Loss(shard=shard, serials=range(reached, stop)))
    return losses
