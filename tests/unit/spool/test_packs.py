from __future__ import annotations

from pathlib import PurePath

import pytest

from siltstone.errors import CorruptionError
from siltstone.fs.memory import MemoryFileSystem
from siltstone.spool.contents import EntryStream, unpacked
from siltstone.spool.drafts import write_draft
from siltstone.spool.packs import EntryPlace, Pack, find_part

PATH = PurePath("/0.tmp")
DATA = {"7": b"first", "8-m": b"", "9": b"third" * 100}


def packed() -> MemoryFileSystem:
    """Return a disk with a pack, under the names of its entries and one more."""
    fs = MemoryFileSystem()
    pack = Pack(fs.create(PATH))
    for data in DATA.values():
        pack.add(data)
    pack.seal(list(DATA))
    for name in [*DATA, "10"]:
        fs.link(PATH, PurePath("/") / name)
    return fs


def test_each_entry_is_read_by_its_name() -> None:
    fs = packed()
    found = {}
    for name, data in DATA.items():
        with EntryStream(fs.open(PurePath("/") / name, writable=False)) as stream:
            assert stream.length == len(data)
            found[name] = stream.read()
    assert found == DATA


def test_the_file_ends_as_its_docstring_says() -> None:
    data = packed().read(PATH)
    table = data.index(b"siltstone pack 1\n")
    assert table == sum(map(len, DATA.values()))
    assert data[table:].startswith(b"siltstone pack 1\n0 5 ")
    assert data[-16:-8] == table.to_bytes(8, "little")
    assert data[-4:] == b"SPB1"


def test_a_file_with_one_entry_is_no_pack() -> None:
    fs = MemoryFileSystem()
    write_draft(fs, PATH, b"data").sync()
    with fs.open(PATH, writable=False) as file:
        assert (find_part(file), unpacked(file)) == (None, None)


def test_an_entry_that_leaves_its_pack_is_as_if_it_had_been_stored_alone() -> None:
    fs = packed()
    alone = MemoryFileSystem()
    write_draft(alone, PATH, DATA["9"]).sync()
    with fs.open(PurePath("/9"), writable=False) as file:
        assert find_part(file) == EntryPlace(5, 500, find_part(file).checksum)  # type: ignore[union-attr]
        assert unpacked(file) == alone.read(PATH)


def test_a_name_that_the_pack_does_not_know_is_told() -> None:
    with pytest.raises(CorruptionError, match="does not hold this entry"):
        EntryStream(packed().open(PurePath("/10"), writable=False))


def test_no_flipped_bit_gives_wrong_data() -> None:
    size = len(packed().read(PATH))
    for offset in range(size):
        fs = packed()
        with fs.open(PATH, writable=True) as file:
            file.write_at(offset, bytes([file.read_at(offset, 1)[0] ^ 1]))
        for name, data in DATA.items():
            try:
                with EntryStream(fs.open(PurePath("/") / name, writable=False)) as stream:
                    assert stream.read() == data
            except CorruptionError:
                continue
