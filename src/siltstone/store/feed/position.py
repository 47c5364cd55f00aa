"""The position of a reader in a database: for each shard the serial of the next row.

Feeds, saved sessions, share groups, Spark's checkpoints and the ledger of a lake all keep this
value. One number for each shard is enough for any number of streams and generations: each row of a
shard has a serial, and serials continue from one generation to the next.

The identity distinguishes a database from a later one of the same name, whose serials start at 0
again. There are two forms outside of memory; a session keeps the numbers in rows of its own
(`session/archive/codec.py`).

bytes     `SF` 2, count u32, then shard u32 and next serial u64 for each, by shard, then length u32
          + text: the identity, empty if the position was created by hand. Version 1 ends before it.
JSON      {"version": 2, "identity": "9f…", "shards": {"0": 1200, "1": 1187}}
          Version 1 has no identity.

Spark keeps the JSON in a checkpoint. Users write it too, as startingOffsets and endingOffsets. As
in Kafka's options, -2 means the earliest and -1 the latest row.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from siltstone.errors import UsageError
from siltstone.store.log.arguments import require_kind
from siltstone.store.slab.identity import UNIDENTIFIED, DatabaseIdentity

_HEAD: Final = struct.Struct("<2sBI")
_ENTRY: Final = struct.Struct("<IQ")
_MAGIC: Final = b"SF"
_LENGTH: Final = struct.Struct("<I")
_WITHOUT_IDENTITY: Final = 1
_VERSION: Final = 2
# Words in place of a serial: the first row that there is, and the row after the last one.
EARLIEST: Final = -2
LATEST: Final = -1
# No row ever has this serial: a reader at this position wants no row of the shard.
NEVER: Final = (1 << 64) - 1
_JSON_MAX: Final = (1 << 63) - 1
_DIGITS_MAX: Final = 10
_SHOWN_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class Position:
    """The next serial by shard; -2 means the earliest row of a shard, and -1 the latest.

    A shard that is not listed is at `default`, which is the earliest or the latest row: shards may
    be added while a reader runs. `identity` is the identity of the database. It is None in a
    position that was created by hand, and empty in one that an earlier version saved.
    """

    serials: Mapping[int, int]
    identity: str | None = None
    default: int = EARLIEST

    def __post_init__(self) -> None:
        for shard, serial in self.serials.items():
            if not 0 <= shard < 1 << 32 or not EARLIEST <= serial <= NEVER:
                raise UsageError(
                    f"a position needs a shard and a serial, both 0 or more (or -2 for the "
                    f"earliest, -1 for the latest row): shard={shard} serial={serial}"
                )
        if self.default not in (EARLIEST, LATEST):
            raise UsageError(
                f"default must be -2 (earliest) or -1 (latest): default={self.default}"
            )

    @classmethod
    def parse(cls, text: str, name: str = "position", *, default: int = EARLIEST) -> Position:
        """Read `earliest`, `latest` or the JSON of a position, as a user writes it.

        The name is for error messages. A position without an identity belongs to any database.

        Raises: UsageError.
        """
        word = text.strip()
        if word.lower() == "earliest":
            return START
        if word.lower() == "latest":
            return END
        try:
            values = json.loads(word)
        except (ValueError, RecursionError) as exc:
            raise UsageError(
                f"{name} must be earliest, latest, or JSON such as "
                f'{{"version": 1, "shards": {{"0": 1200}}}}: {name}={shortened(text)}'
            ) from exc
        return _read_json(values, name, default, unnamed=None)

    @classmethod
    def from_json(cls, values: object, name: str = "position") -> Position:
        """Read the values that `to_json` returned. Raises: UsageError."""
        return _read_json(values, name, EARLIEST, unnamed=UNIDENTIFIED)

    @classmethod
    def from_bytes(cls, data: bytes) -> Position:
        """Read the bytes that `to_bytes` returned. Raises: UsageError."""
        require_kind("data", data, bytes, "bytes")
        if len(data) < _HEAD.size or data[:2] != _MAGIC:
            raise UsageError("invalid saved position: the bytes do not come from to_bytes")
        _, version, count = _HEAD.unpack_from(data)
        if version not in (_WITHOUT_IDENTITY, _VERSION):
            raise UsageError(
                f"unknown version {version} of a saved position (supported: {_WITHOUT_IDENTITY}, "
                f"{_VERSION})"
            )
        end = _HEAD.size + count * _ENTRY.size
        if version == _WITHOUT_IDENTITY:
            identity: str | None = UNIDENTIFIED
            if len(data) != end:
                raise UsageError("invalid saved position: wrong length")
        else:
            identity = _identity_in(data[end:]) or None
        serials = dict(_ENTRY.iter_unpack(data[_HEAD.size : end]))
        if len(serials) != count:
            raise UsageError("invalid saved position: a shard is repeated")
        return cls(serials, identity)

    def serial(self, shard: int) -> int:
        """Return the next serial of a shard, 0 if it is not listed."""
        return self.serials.get(shard, 0)

    def is_of(self, origin: DatabaseIdentity) -> bool:
        """Return whether a reader of this database can continue here."""
        return not self.serials or self.identity is None or origin.owns(self.identity)

    def at(self, shard: int, serial: int) -> Position:
        """Return the position that continues with this serial in a shard."""
        return Position({**self.serials, shard: serial}, self.identity, self.default)

    def of(self, identity: str) -> Position:
        """Return the same serials as a position in the database with this identity."""
        return Position(self.serials, identity, self.default)

    def reaches(self, other: Position) -> bool:
        """Return whether this position is at or after the other one in every shard."""
        return all(self.serial(shard) >= serial for shard, serial in other.serials.items())

    def resolved(self, bounds: Mapping[int, range]) -> Position:
        """Return a position with a serial for each of these shards, and without words.

        `bounds` has the serials of the rows that there are, by shard. A shard that is not in
        `bounds` keeps its serial.
        """
        words = {
            shard: {EARLIEST: there.start, LATEST: there.stop} for shard, there in bounds.items()
        }
        asked = dict.fromkeys(bounds, self.default) | dict(self.serials)
        serials = {
            shard: words.get(shard, {}).get(serial, serial)
            for shard, serial in sorted(asked.items())
        }
        return Position(serials, self.identity)

    def to_bytes(self) -> bytes:
        """Return bytes that outlive this process.

        Raises: UsageError for a position that names the earliest or latest row of a shard.
        """
        if self.default != EARLIEST or any(serial < 0 for serial in self.serials.values()):
            raise UsageError(
                f"a position in bytes needs a serial for each shard, not -2 or -1; use to_json: "
                f"shards={dict(self.serials)} default={self.default}"
            )
        version = _WITHOUT_IDENTITY if self.identity == UNIDENTIFIED else _VERSION
        entries = [_ENTRY.pack(shard, serial) for shard, serial in sorted(self.serials.items())]
        parts = [_HEAD.pack(_MAGIC, version, len(entries)), *entries]
        if version == _VERSION:
            text = (self.identity or "").encode()
            parts += [_LENGTH.pack(len(text)), text]
        return b"".join(parts)

    def to_json(self) -> dict[str, Any]:
        """Return values for JSON, sorted by shard: Spark compares positions as text.

        They do not include `default`.
        """
        if not self.identity:
            return {"version": _WITHOUT_IDENTITY, "shards": self.shards()}
        return {"version": _VERSION, "identity": self.identity, "shards": self.shards()}

    def shards(self) -> dict[str, int]:
        """Return the serials with the shards as text, for JSON, sorted by shard."""
        return {str(shard): serial for shard, serial in sorted(self.serials.items())}

    def to_text(self) -> str:
        """Return the text that `parse` reads."""
        if not self.serials:
            return "latest" if self.default == LATEST else "earliest"
        return json.dumps(self.to_json())


START: Final = Position({})
END: Final = Position({}, default=LATEST)


def shortened(text: str) -> str:
    """Return a text for an error message; a long text is cut."""
    return repr(text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…")


def _identity_in(data: bytes) -> str:
    if len(data) < _LENGTH.size or len(data) != _LENGTH.size + _LENGTH.unpack_from(data)[0]:
        raise UsageError("invalid saved position: wrong length")
    try:
        return data[_LENGTH.size :].decode()
    except UnicodeDecodeError as exc:
        raise UsageError("invalid saved position: the bytes do not come from to_bytes") from exc


def _read_json(values: object, name: str, default: int, *, unnamed: str | None) -> Position:
    """Read plain values; `unnamed` is the identity of values without one."""
    if not isinstance(values, dict) or "version" not in values or "shards" not in values:
        raise UsageError(f"{name} must have version and shards: {values!r}")
    if values["version"] not in (_VERSION, _WITHOUT_IDENTITY):
        raise UsageError(f"unknown version {values['version']!r} of {name}")
    known = {"version", "shards"} | ({"identity"} if values["version"] == _VERSION else set())
    if set(values) != known:
        there = ", ".join(sorted(known))
        raise UsageError(f"{name} of this version must have {there} only: {values!r}")
    identity = values.get("identity", unnamed)
    if "identity" in values and not (isinstance(identity, str) and identity):
        raise UsageError(
            f"{name} must have the identity of a database as text: identity={identity!r}"
        )
    return Position(_read_shards(values["shards"], name), identity, default)


def _read_shards(shards: object, name: str) -> dict[int, int]:
    if not isinstance(shards, dict):
        raise UsageError(f"{name} must have a serial for each shard: shards={shards!r}")
    serials: dict[int, int] = {}
    for shard, serial in shards.items():
        if not (isinstance(shard, str) and shard.isdecimal() and len(shard) <= _DIGITS_MAX):
            raise UsageError(f"{name} must have the numbers of shards as keys: shard={shard!r}")
        # A serial that only a feed knows, such as NEVER, does not fit into what Spark stores.
        if type(serial) is not int or not EARLIEST <= serial <= _JSON_MAX:
            raise UsageError(
                f"{name} must have a serial, -2 for earliest or -1 for latest: "
                f"shard={shard} serial={serial!r}"
            )
        serials[int(shard)] = serial
    return serials
