"""What docs/formats.md says of snapshots is what the code does, byte by byte."""

from __future__ import annotations

import gzip
import re
import struct
from hashlib import blake2b
from pathlib import Path

from crc32c import crc32c

from siltstone.snapshot.format.codec import FIELDS
from siltstone.snapshot.format.records import Record
from siltstone.snapshot.format.stream import BODY_BYTES_MAX, PART_BYTES, VERSION
from siltstone.snapshot.writer import CONTENT_BYTES_MAX
from tests.support.snapshots import bytes_of, opened, queued, records_in, retained, session

TEXT = (Path(__file__).parent.parent / "docs" / "formats.md").read_text("utf-8")
EXAMPLE: list[Record] = [retained("oven", b"hot"), session("c1"), queued("oven", b"hot")]


def section() -> str:
    found = re.search(r"^## Snapshots\n(.*?)(?=^## )", TEXT, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def dump() -> list[list[str]]:
    """Return offset, bytes, struct code, value and meaning of each line of the example."""
    example = section().partition("### A snapshot byte by byte")[2]
    lines = [line for line in example.splitlines() if line.startswith("    ")]
    return [re.split("  +", line.strip()) for line in lines]


def example_bytes() -> bytes:
    return b"".join(bytes.fromhex(line[1]) for line in dump())


def test_the_offsets_count_the_bytes() -> None:
    position = 0
    for offset, data, *_ in dump():
        assert int(offset, 16) == position
        position += len(bytes.fromhex(data))


def test_every_line_says_what_its_bytes_are() -> None:
    for offset, data, code, value, meaning in dump():
        (found,) = struct.unpack(f"<{code}", bytes.fromhex(data))
        if isinstance(found, bytes):
            shown = found.hex() if meaning.startswith("digest") else found.decode()
        else:
            shown = str(found)
        assert (offset, shown) == (offset, value)


def test_the_code_writes_and_reads_these_bytes() -> None:
    assert gzip.decompress(bytes_of(EXAMPLE)) == example_bytes()
    assert records_in(opened(gzip.compress(example_bytes()))) == EXAMPLE


def test_checksums_and_digest_are_what_they_are_said_to_be() -> None:
    data = example_bytes()
    position, kinds = 12, []
    while position < len(data):
        length, crc, kind = struct.unpack_from("<IIB", data, position)
        kinds.append(kind)
        body = data[position + 9 : position + 9 + length]
        assert crc32c(bytes([kind]) + body) == crc
        if kind == 255:
            assert body[12:44] == blake2b(data[:position], digest_size=32).digest()
        position += 9 + length
    assert kinds == [1, 2, 3, 4, 6, 255]


def test_the_table_of_records_is_that_of_the_code() -> None:
    stated = re.findall(r"^\| (\d+) \| (\w+) \| ([\w, ]+) \|$", section(), re.MULTILINE)
    fields = {
        int(kind): (name, dict(field.split(" ") for field in text.split(", ")))
        for kind, name, text in stated
    }
    assert fields == {kind: (cls.__name__, known) for kind, (cls, known) in FIELDS.items()}


def test_the_limits_are_those_of_the_code() -> None:
    mib = 1024 * 1024
    assert f"version u32 = {VERSION}" in section()
    assert f"at most {BODY_BYTES_MAX // mib} MiB" in section()
    assert f"up to {PART_BYTES // 1024} KiB of it" in section()
    assert f"at most {CONTENT_BYTES_MAX // mib} MiB |" in section()
