"""Entries, and the names of their files: `<id>`, or `<id>-<metadata>`.

The id is decimal, without leading zeros. Metadata is percent-encoded to lower-case letters, digits,
`_` and `-`, so that the locale, the case and the forbidden characters of a file system do not
matter. A name in any other form is not an entry.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import total_ordering
from typing import Final

from siltstone.errors import UsageError

ID_MAX: Final = 2**63 - 1
# The limit of file systems, less an id of 19 digits and the dash.
METADATA_BYTES_MAX: Final = 255 - 20

_SAFE: Final = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789_-")
_NAME: Final = re.compile(r"(0|[1-9][0-9]{0,18})(?:-((?:[a-z0-9_-]|%[0-9a-f]{2})*))?")
_ESCAPE: Final = re.compile(rb"%([0-9a-f]{2})")


@total_ordering
@dataclass(frozen=True, slots=True)
class Entry:
    """One item of a spool; any process can use it to find the item. Entries are ordered by id.

    Ids rise in the order of storing.

    Raises: UsageError for an invalid id or invalid metadata.
    """

    id: int
    metadata: str | None = None

    def __post_init__(self) -> None:
        """Check both values: any caller may create an Entry."""
        if type(self.id) is not int or not 0 <= self.id <= ID_MAX:
            raise UsageError(f"the id of an entry must be from 0 to 2**63 - 1, got {self.id!r}")
        if self.metadata is not None:
            encode_metadata(self.metadata)

    def __lt__(self, other: Entry) -> bool:
        return self.id < other.id


def entry(id: int, metadata: str | None = None) -> Entry:  # noqa: A002 - what it is called
    """Return an entry from the id and metadata that `store` returned."""
    return Entry(id, metadata)


def encode_metadata(text: str) -> str:
    """Return metadata in the form of a file name. Raises: UsageError when it is too long."""
    if not isinstance(text, str):
        raise UsageError(f"metadata must be text, or None: type={type(text).__name__}")
    try:
        data = text.encode()
    except UnicodeEncodeError as exc:
        raise UsageError(
            f"metadata must be valid Unicode: {exc.reason}: position={exc.start}"
        ) from exc
    encoded = "".join(chr(byte) if byte in _SAFE else f"%{byte:02x}" for byte in data)
    if len(encoded) > METADATA_BYTES_MAX:
        raise UsageError(
            f"metadata are too long for a file name: encoded_bytes={len(encoded)}"
            f" max={METADATA_BYTES_MAX}"
        )
    return encoded


def file_name(of: Entry) -> str:
    """Return the name of an entry's file."""
    return str(of.id) if of.metadata is None else f"{of.id}-{encode_metadata(of.metadata)}"


def parse_name(name: str) -> Entry | None:
    """Return the entry of a file with this name; None if it is not the name of an entry."""
    found = _NAME.fullmatch(name)
    if found is None or len(name) > METADATA_BYTES_MAX + 20:
        return None
    number, encoded = int(found[1]), found[2]
    if number > ID_MAX:
        return None
    if encoded is None:
        return Entry(number)
    data = _ESCAPE.sub(lambda escape: bytes.fromhex(escape[1].decode()), encoded.encode("ascii"))
    try:
        metadata = data.decode()
    except UnicodeDecodeError:
        return None
    # `%61` decodes to `a`, but `encode_metadata` never writes it.
    return Entry(number, metadata) if encode_metadata(metadata) == encoded else None
