from __future__ import annotations

import pytest

from siltstone.errors import UsageError
from siltstone.spool.names import ID_MAX, Entry, encode_metadata, entry, file_name, parse_name


def test_an_entry_is_made_of_its_two_parts_again() -> None:
    assert entry(7, "a") == Entry(7, "a")
    assert entry(7) == Entry(7, None)
    assert entry(7) != entry(7, "")


def test_entries_are_ordered_by_id_whatever_their_metadata() -> None:
    entries = [Entry(10), Entry(9, "z"), Entry(11, "a"), Entry(0)]
    assert [found.id for found in sorted(entries)] == [0, 9, 10, 11]
    assert max(entries) == Entry(11, "a")


@pytest.mark.parametrize("number", [-1, ID_MAX + 1, True, 1.0, "1", None])
def test_an_id_that_no_entry_has_is_refused(number: int) -> None:
    with pytest.raises(UsageError, match=r"the id of an entry must be from 0 to 2\*\*63 - 1, got"):
        Entry(number)


@pytest.mark.parametrize(
    ("made", "name"),
    [
        (Entry(0), "0"),
        (Entry(ID_MAX), "9223372036854775807"),
        (Entry(1, ""), "1-"),
        (Entry(1, "a-b_c9"), "1-a-b_c9"),
        (Entry(1, "A/b.c\0%"), "1-%41%2fb%2ec%00%25"),
        (Entry(1, "é☃"), "1-%c3%a9%e2%98%83"),
    ],
)
def test_a_name_is_of_one_entry_and_back(made: Entry, name: str) -> None:
    assert file_name(made) == name
    assert parse_name(name) == made


@pytest.mark.parametrize(
    "name",
    [
        "",
        "1foo",
        "007",
        "-1",
        "-a",
        "+1",
        "1.5",
        "9223372036854775808",
        "99999999999999999999",
        "1-A",
        "1-%41x.json",
        "1-%61",
        "1-%4",
        "1-%C3",
        "1-%ff",
        "1-" + "a" * 254,
        "٣",
        "1\n",
    ],
)
def test_a_name_that_would_not_be_written_so_is_of_no_entry(name: str) -> None:
    assert parse_name(name) is None


def test_metadata_take_235_bytes_once_they_are_encoded() -> None:
    assert encode_metadata("a" * 235) == "a" * 235
    assert encode_metadata("é" * 39 + "a") == "%c3%a9" * 39 + "a"
    for text in ("a" * 236, "é" * 39 + "ab", "A" * 79):
        with pytest.raises(UsageError, match=r"encoded_bytes=23[67] max=235"):
            encode_metadata(text)
    assert len(file_name(Entry(ID_MAX, "a" * 235))) == 255


def test_what_is_no_unicode_is_no_metadata() -> None:
    with pytest.raises(UsageError, match="surrogates not allowed: position=1"):
        Entry(1, "a\ud800")
