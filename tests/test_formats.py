"""docs/formats.md says what the code does: its tables and its example are decoded from its text."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from dataclasses import replace
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path, PurePath

import pytest

from siltstone.settings.declare import encoding_of
from siltstone.store.directory import VERSION
from siltstone.store.log.iterator import StreamIterator, StreamRef
from siltstone.store.log.opening import identity_of
from siltstone.store.log.write.frame_builder import Call, FrameBuilder
from siltstone.store.segment import frame as frame_module
from siltstone.store.segment.body import index_width
from siltstone.store.segment.frame import (
    EDGES,
    HEADER,
    MAGIC,
    PACKED,
    PACKED_BYTES_MAX,
    PACKED_HEADER,
    PACKED_HEADER_BYTES,
    PACKED_ROWS_MAX,
    PLAIN,
    ROWS,
    STREAMS,
    WIDE,
    WITH_FLAGS,
    WITH_PROPERTIES,
    WITH_STATE,
    FrameHeader,
    crc_matches,
    decode_header,
    head_matches,
)
from siltstone.store.segment.index import SUMMARY_BYTES, SegmentIndex, encode_index
from siltstone.store.segment.segment import SEGMENT_HEADER_BYTES, segment_path
from siltstone.store.segment.sift import index_path
from siltstone.store.slab.manifest import MANIFEST, RESERVE, Manifest, SlabId, SlabRecord, SlabState
from siltstone.store.slab.settings import DatabaseSettings
from siltstone.topic.edges import edge_id
from siltstone.topic.grammar import TopicFilter
from siltstone.topic.structure import Structure
from tests.support.frames import (
    StoredRow,
    built_frame,
    frame_bytes,
    header_fields,
    packed_frame,
    rows_in,
    segment_header,
    view_of,
)
from tests.support.row_batches import row_batch

TEXT = (Path(__file__).parent.parent / "docs" / "formats.md").read_text("utf-8")
SEED = 0x51175702
DUMP_LINE = re.compile(r"    ([0-9a-f]{4})  ((?:[0-9a-f]{2} ?)+?)  +(\S+)  +(.+?)(?:  +(.*))?")


def part(title: str) -> str:
    """Return the text under a heading, up to the next heading of any level."""
    found = re.search(rf"^##+ {title}\n(.*?)(?=^##|\Z)", TEXT, re.MULTILINE | re.DOTALL)
    assert found is not None, title
    return found[1]


def tables(text: str) -> Iterator[list[list[str]]]:
    """Yield the tables of a text as rows of cells, without head and rule."""
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in block.splitlines()]
        yield rows[2:]


def field_table(title: str) -> list[tuple[int, int, str]]:
    """Return (offset, size, field) of a table of bytes; the size is 0 where it is not given."""
    rows = next(iter(tables(part(title))))
    return [(int(offset), int(size or 0), field) for offset, size, field in rows]


def dump(title: str = "An example") -> list[tuple[int, bytes, str, str]]:
    """Return offset, bytes, struct code and value of each line of an example."""
    lines = [line for line in part(title).splitlines() if line.startswith("    ")]
    found = []
    for line in lines:
        match = DUMP_LINE.fullmatch(line)
        assert match is not None, line
        found.append((int(match[1], 16), bytes.fromhex(match[2]), match[3], match[4]))
    return found


def example(title: str = "An example") -> bytes:
    return b"".join(data for _, data, _, _ in dump(title))


def stated_rows(title: str) -> list[StoredRow]:
    """Return the rows in the table below an example."""
    (rows,) = tables(part(title))
    return [
        StoredRow(
            stream_id=int(stream, 16),
            serial=int(serial),
            timestamp_us=int(timestamp_us),
            topic=topic,
            value=value.encode(),
            publisher=publisher,
            flags=int(qos) | (4 if retain == "true" else 0),
            properties=b"",
        )
        for serial, timestamp_us, stream, topic, value, publisher, qos, retain in rows
    ]


def crc_from(seed: int, data: bytes) -> int:
    """Return the CRC-32C of the data when that of what came before is the seed, bit by bit."""
    crc = seed ^ 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def stated_value(code: str, text: str) -> tuple[int | bytes, ...]:
    """Return what the value column says, as struct would."""
    if text == "zeros":
        return ()
    values = text.split(" ")
    kinds = re.findall(r"\d*s|[a-zA-Z]", re.sub(r"(\d+)([^s\d])", lambda m: m[2] * int(m[1]), code))
    return tuple(
        value.encode() if kind.endswith("s") else int(value, 0)
        for kind, value in zip(kinds, values, strict=True)
    )


EXAMPLES = pytest.mark.parametrize("title", ["An example", "A packed example"])


class TestExample:
    @EXAMPLES
    def test_the_offsets_count_the_bytes(self, title: str) -> None:
        position = 0
        for offset, data, _, _ in dump(title):
            assert offset == position
            position += len(data)

    @EXAMPLES
    def test_every_line_says_what_its_bytes_are(self, title: str) -> None:
        for offset, data, code, value in dump(title):
            found = struct.unpack(f"<{code}", data)
            assert (offset, found) == (offset, stated_value(code, value))
            if value == "zeros":
                assert data == bytes(len(data))

    @EXAMPLES
    def test_the_checksum_is_that_of_the_seed_and_the_bytes(self, title: str) -> None:
        data = example(title)
        assert "whose seed is 0x51175702" in part("An example")
        assert struct.unpack_from("<I", data, 4) == (crc_from(SEED, data[8:]),)

    def test_the_checksum_of_the_head_is_that_of_table_streams_and_edges(self) -> None:
        data = example()
        sections = [struct.unpack_from("<HHI", data, 64 + 8 * number) for number in range(10)]
        assert [section_id for section_id, _, _ in sections[:2]] == [STREAMS, EDGES]
        end = 64 + 8 * 10 + sum((length + 7) // 8 * 8 for _, _, length in sections[:2])
        assert struct.unpack_from("<I", data, 60) == (crc_from(SEED, data[8:60] + data[64:end]),)

    def test_the_frame_is_whole_for_the_code(self) -> None:
        data = memoryview(example())
        header = decode_header(data, 0, len(data))
        assert header is not None
        assert crc_matches(data, 0, header, SEED)
        assert head_matches(data, 0, header, SEED)

    def test_the_header_is_read_as_stated(self) -> None:
        data = example()
        header = decode_header(memoryview(data), 0, len(data))
        assert header is not None
        assert header_fields(header) == header_fields(
            FrameHeader(
                crc=0xDD7C0B27,
                length=len(data),
                kind=ROWS,
                compression=PLAIN,
                section_count=10,
                first_serial=1000,
                row_count=3,
                stream_count=2,
                first_timestamp_us=1_700_000_000_000_000,
                last_timestamp_us=1_700_000_000_000_002,
                synced_position=4160,
                body_bytes=len(data) - 64,
            )
        )

    @EXAMPLES
    def test_the_rows_are_read_as_stated(self, title: str) -> None:
        assert rows_in(view_of(example(title))) == stated_rows(title)

    def test_the_packed_frame_is_whole_for_the_code(self) -> None:
        data = memoryview(example("A packed example"))
        header = decode_header(data, 0, len(data))
        assert header is not None
        assert crc_matches(data, 0, header, SEED)
        assert header_fields(header) == header_fields(
            FrameHeader(
                crc=0x8BF33407,
                length=len(data),
                kind=ROWS,
                compression=PACKED,
                section_count=0,
                first_serial=1003,
                row_count=2,
                stream_count=2,
                first_timestamp_us=1_700_000_060_000_000,
                last_timestamp_us=1_700_000_060_000_001,
                synced_position=4552,
                body_bytes=len(data) - 36,
            )
        )

    def test_the_edges_make_the_streams_of_the_rows(self) -> None:
        edges = view_of(example()).section(EDGES)
        assert edges is not None
        streams = {stream.pattern: stream.id for stream in Structure([100]).apply(edges)}
        assert streams == {
            b"home/kitchen": 0x921EEDB3C76D51A4,
            b"home/hall": 0xA91FFB5AFA124FCC,
        }

    def test_the_code_writes_these_bytes_for_the_call_of_the_story(self) -> None:
        topics = [b"home/kitchen", b"home/hall", b"home/kitchen"]
        call = Call(row_batch(topics, [b"21.5", b"19", b"21.6"], b"gw-1"))
        call.batch.shared_flags = 1
        built = FrameBuilder(Structure([100, 10]), 100).build([call], 1_700_000_000_000_000)
        frame = built_frame(built, serial=1000)
        frame.header.synced_position = 4160
        assert frame_bytes(frame, SEED) == example()

    def test_the_code_writes_the_packed_bytes_for_the_next_call(self) -> None:
        builder = FrameBuilder(Structure([100, 10]), 100)
        builder.build([Call(row_batch([b"home/kitchen", b"home/hall"], [b"", b""], b"gw-1"))], 1)
        call = Call(row_batch([b"home/hall", b"home/kitchen"], [b"18.9", b"21.7"], b"gw-1"))
        call.batch.shared_flags = 1
        frame = packed_frame(builder.build([call], 1_700_000_060_000_000), serial=1003)
        frame.header.synced_position = 4160 + len(example())
        assert frame_bytes(frame, SEED) == example("A packed example")


class TestTables:
    @pytest.mark.parametrize("title", ["Segment", "Frame", "Packed frames", "Index"])
    def test_the_fields_of_a_table_leave_no_byte_out(self, title: str) -> None:
        rows = field_table(title)
        assert [offset + size for offset, size, _ in rows[:-1]] == [row[0] for row in rows[1:]]

    def test_headers_are_as_long_as_their_tables(self) -> None:
        titles = ("Segment", "Frame", "Packed frames", "Index")
        lengths = {title: field_table(title)[-1][0] for title in titles}
        assert lengths == {
            "Segment": SEGMENT_HEADER_BYTES,
            "Frame": HEADER.size,
            # The form is the beginning of the body.
            "Packed frames": PACKED_HEADER.size + 4,
            "Index": SUMMARY_BYTES,
        }

    def test_the_fields_of_a_frame_are_as_wide_as_the_code_packs_them(self) -> None:
        sizes = [size for _, size, _ in field_table("Frame")[:-1]]
        codes = re.findall(r"4s|[A-Za-z]", HEADER.format.lstrip("<"))
        assert sizes == [struct.calcsize(f"<{code}") for code in codes]

    def test_the_fields_of_a_packed_frame_are_as_wide_as_the_code_packs_them(self) -> None:
        sizes = [size for _, size, _ in field_table("Packed frames")[:-1]]
        codes = re.findall(r"4s|[A-Za-z]", PACKED_HEADER.format.lstrip("<"))
        assert sizes == [*(struct.calcsize(f"<{code}") for code in codes), 1, 1, 1, 1]
        assert PACKED_HEADER.size == PACKED_HEADER_BYTES

    def test_the_limits_of_a_packed_frame_are_stated(self) -> None:
        text = " ".join(part("Packed frames").split())
        assert f"1 to {PACKED_ROWS_MAX} rows" in text
        assert f"at most {PACKED_BYTES_MAX:,} bytes" in text
        stated = f"form: {WIDE} the ends are wide, {WITH_PROPERTIES} the rows have properties"
        stated += f", {WITH_FLAGS} each row has its own flags, {WITH_STATE} there are edges"
        assert stated in text

    @pytest.mark.parametrize(("packs", "revision", "version"), [(0, 0, 1), (1, 0, 3), (1, 1, 2)])
    def test_the_version_of_a_segment_is_as_stated(
        self, packs: int, revision: int, version: int
    ) -> None:
        header = replace(segment_header(), packs=bool(packs), revision=revision)
        assert header.encode(end=4096)[4:8] == struct.pack("<I", version)

    def test_the_fields_of_a_segment_stand_where_the_code_puts_them(self) -> None:
        made = replace(segment_header(base_serial=42), salt=77, topic="a/b", revision=6)
        header = made.encode(end=5000)
        found = {
            field.split(",")[0]: int.from_bytes(header[offset : offset + size], "little")
            for offset, size, field in field_table("Segment")[:-1]
            if 0 < size <= 8
        }
        assert found == {
            "magic `KASK`": int.from_bytes(b"KASK", "little"),
            "version": 2,
            "size of the file": 65536,
            "base serial": 42,
            "shard": 3,
            "generation": 7,
            "created": 1_700_000_000_000_000,
            "seed of the frames' CRCs": 0x5EEDF00D,
            "layout": 1,
            "length of the database's name": 5,
            "revision": 6,
            "salt of the database": 77,
            "length of the topic's name": 3,
            "CRC-32C of bytes 0 to 2043": crc_from(0, header[:2044]),
            "visible position": 5000,
            "synced position": 5000,
            "reserved serial": 0,
        }
        assert header[50:308] == b"plant".ljust(258, b"\0")
        assert header[322:2044] == b"a/b".ljust(1722, b"\0")

    def test_the_fields_of_an_index_stand_where_the_code_puts_them(self) -> None:
        index = SegmentIndex(first_serial=100, end_position=4096)
        header = FrameHeader(
            length=128,
            kind=ROWS,
            compression=PLAIN,
            section_count=0,
            first_serial=100,
            row_count=3,
            stream_count=2,
            first_timestamp_us=1000,
            last_timestamp_us=1002,
            body_bytes=64,
        )
        index.add(4096, header, [(7, 0, 2, 0, 1), (9, 2, 1, 1, 1)])
        data = encode_index(index, structure=b"edges", producers=b"p" * 24)
        found = [
            int.from_bytes(data[offset : offset + size], "little")
            for offset, size, _ in field_table("Index")[2:-1]
        ]
        assert found == [1, 1, 2, 2, 100, 103, 4224, 5, 24, crc_from(0, data[8:64]), 0]
        assert data[:8] == b"KIDX" + struct.pack("<I", crc_from(0, data[8:]))

    def test_the_sections_have_the_ids_of_the_code(self) -> None:
        (rows,) = tables(part("Sections"))
        stated = {name: int(number) for number, name, *_ in rows}
        assert stated == {name: getattr(frame_module, name) for name in stated}
        assert sorted(stated.values()) == list(range(1, frame_module.SECTION_MAX + 1))

    def test_the_sections_of_the_example_come_in_the_order_of_the_table(self) -> None:
        (rows,) = tables(part("Sections"))
        order = [int(number) for number, *_ in rows]
        data = example()
        ids = [struct.unpack_from("<H", data, 64 + 8 * number)[0] for number in range(10)]
        widths = {int(number): text.split(", ") for number, _, text, *_ in rows}
        assert all(order.index(before) < order.index(after) for before, after in pairwise(ids))
        for number, section_id in enumerate(ids):
            (width,) = struct.unpack_from("<H", data, 64 + 8 * number + 2)
            assert str(width) in widths[section_id]

    def test_an_index_is_as_wide_as_stated(self) -> None:
        text = " ".join(part("Sections").split())
        assert "1 byte wide for up to 128 entries, 2 for up to 32,768, else 4" in text
        assert [index_width(count) for count in (128, 129, 32_768, 32_769)] == [1, 2, 2, 4]

    def test_the_magic_of_a_frame_is_stated(self) -> None:
        assert field_table("Frame")[0] == (0, 4, f"magic `{MAGIC.decode()}`")

    def test_the_version_file_is_stated(self) -> None:
        assert f"`{VERSION.decode().rstrip()}` and a newline" in part("Data directory")


class TestHashes:
    def test_ids_are_made_as_stated(self) -> None:
        data = (1).to_bytes(8, "little") + b"\0" + b"home"
        stated = int.from_bytes(blake2b(data, digest_size=64).digest()[:8], "little")
        assert edge_id(1, 0, b"home") == stated == 0x86C328EF7D15078B

    def test_the_seed_is_made_as_stated(self) -> None:
        manifest = Manifest(database="d", salt=4711, settings=DatabaseSettings(), slabs=())
        stated = blake2b(b"4711/3/7", digest_size=4).digest()
        assert identity_of(manifest, SlabId(3, 7)).seed == int.from_bytes(stated, "little")


class TestManifest:
    def test_the_keys_are_those_of_the_code(self) -> None:
        record = SlabRecord(
            shard=0,
            generation=1,
            state=SlabState.SEALED,
            since_us=0,
            until_us=3,
            created_us=0,
            closed_us=2,
            compacted=(0,),
            compacting=4,
            encoding=encoding_of(DatabaseSettings()),
        )
        manifest = Manifest(
            database="d",
            salt=1,
            settings=DatabaseSettings(),
            slabs=(record,),
            logs=("t",),
            reclaimed={0: 1},
            journal=1,
        )
        title, _, content = manifest.encode().partition(b"\n")
        values = json.loads(content)
        rows = {key.strip("`"): text for key, text in next(iter(tables(part("Manifest"))))}
        assert list(rows) == list(values)
        assert re.findall(r"`(\w+)`", rows["slabs"]) == list(values["slabs"][0])
        assert title == b"siltstone-manifest 4 %08x" % crc_from(0, content)


class TestSaved:
    @pytest.mark.parametrize(
        ("column", "saved", "fields"),
        [
            (
                0,
                StreamRef(
                    database="d", slab=SlabId(3, 7), stream_id=9, pattern="a/+", identity="5eed"
                ),
                [b"SS", 2, 3, 7, 9, "d", "5eed", "a/+"],
            ),
            (
                1,
                StreamIterator(
                    database="d",
                    slab=SlabId(3, 7),
                    stream_id=9,
                    next_serial=11,
                    since_us=-5,
                    filter=TopicFilter.parse("a/#"),
                    identity="5eed",
                ),
                [b"SI", 2, 3, 7, 9, 11, -5, "d", "5eed", "a/#"],
            ),
        ],
    )
    def test_the_fields_are_those_of_the_code(
        self, column: int, saved: StreamRef | StreamIterator, fields: list[int | bytes | str]
    ) -> None:
        (rows,) = tables(part("Saved streams and iterators"))
        codes = [row[column].strip("`") for row in rows if row[column]]
        packed = b""
        for code, value in zip(codes, fields, strict=True):
            if isinstance(value, str):
                assert code == "text"
                packed += struct.pack("<I", len(value)) + value.encode()
            else:
                packed += struct.pack(f"<{code}", value)
        assert saved.to_bytes() == packed


def test_every_link_leads_somewhere() -> None:
    headings = re.findall(r"^##+ (.*)$", TEXT, re.MULTILINE)
    anchors = {heading.lower().replace(" ", "-") for heading in headings}
    assert set(re.findall(r"\]\(#([\w-]+)\)", TEXT)) - anchors == set()


def test_files_are_named_as_stated() -> None:
    layout = part("Data directory")
    slab = PurePath("/slab")
    path = segment_path(slab, 42)
    assert [path, index_path(path)] == [slab / f"{42:020d}.seg", slab / f"{42:020d}.idx"]
    assert [f"<base serial, 20 digits>{end} " in layout for end in (".seg", ".idx")] == [True, True]
    assert [f"<database>/{name} " in layout for name in (MANIFEST, RESERVE)] == [True, True]
