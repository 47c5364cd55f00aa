from __future__ import annotations

import io
from collections.abc import Iterator

import pytest

from siltstone.cli.store.records import (
    BadLine,
    BadLines,
    RowToAppend,
    gather,
    read_csv,
    read_json_lines,
)
from siltstone.errors import UsageError
from siltstone.store.log.write.partition import Columns
from siltstone.store.slab.settings import VALUE_BYTES_MAX


def from_json(*lines: str | bytes) -> list[RowToAppend | BadLine]:
    return list(
        read_json_lines((line.encode() if isinstance(line, str) else line) for line in lines)
    )


def from_csv(text: str | bytes) -> list[RowToAppend | BadLine]:
    return list(read_csv(io.BytesIO(text.encode() if isinstance(text, str) else text)))


@pytest.mark.parametrize(
    ("line", "record"),
    [
        ('{"topic":"a/b","value":"x"}', RowToAppend(b"a/b", b"x")),
        ('{"topic":"ä","value":"ü"}', RowToAppend("ä".encode(), "ü".encode())),
        ('{"topic":"a","value":""}', RowToAppend(b"a", b"")),
        ('{"topic":"a","value":21.5}', RowToAppend(b"a", b"21.5")),
        ('{"topic":"a","value":null}', RowToAppend(b"a", b"null")),
        (
            '{"topic":"a","value":{"t": [1, true, "ü"]}}',
            RowToAppend(b"a", '{"t":[1,true,"ü"]}'.encode()),
        ),
        ('{"topic":"a","value_base64":"AP8="}', RowToAppend(b"a", b"\x00\xff")),
        (
            (
                '{"topic":"a","value":"x","publisher":"p","qos":2,"retain":true,'
                '"properties_base64":"AQI="}'
            ),
            RowToAppend(b"a", b"x", b"p", 0b110, b"\x01\x02"),
        ),
        (
            (
                '{"topic":"a","timestamp":"2026","value":"x","qos":1,"retain":false,'
                '"properties_base64":"","shard":0,"generation":1,"stream":"ff","serial":7}'
            ),
            RowToAppend(b"a", b"x", b"", 1),
        ),
        ('\ufeff{"topic":"a","value":"x"}', RowToAppend(b"a", b"x")),
    ],
)
def test_a_json_line_is_a_row(line: str, record: RowToAppend) -> None:
    assert from_json(line) == [record]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "invalid JSON: Expecting property name enclosed in double quotes at column 2"),
        ("[]", "expected a JSON object, got an array"),
        (b'{"topic":"\xff","value":"x"}', "invalid UTF-8"),
        ('{"topic":"\\ud800","value":"x"}', "invalid UTF-8"),
        ('{"topic":"a","value":"\\ud800"}', "invalid UTF-8"),
        ('{"value":"x"}', "topic is missing"),
        ('{"topic":1,"value":"x"}', "topic and publisher must be strings"),
        (
            '{"topic":"a","value":"x","publisher":1}',
            "topic and publisher must be strings",
        ),
        ('{"topic":"a"}', "value is missing; give value or value_base64"),
        (
            '{"topic":"a","value":"x","value_base64":""}',
            "value and value_base64 exclude each other; give one of them",
        ),
        ('{"topic":"a","value_base64":"?"}', "invalid base64: Only base64 data is allowed"),
        ('{"topic":"a","value_base64":1}', "a base64 field must be a string"),
        ('{"topic":"a","value":"x","properties_base64":[1]}', "a base64 field must be a string"),
        *(
            (
                f'{{"topic":"a","value":"x","properties_base64":{odd}}}',
                "a base64 field must be a string",
            )
            for odd in ("5", "0", "null", "false", "{}")
        ),
        (
            '{"topic":"a","value_base64":"ü"}',
            "invalid base64: string argument should contain only ASCII characters",
        ),
        ('{"topic":"a","value":' + "7" * 4301 + "}", "a number has more than 4300 digits"),
        ('{"topic":"a","value":NaN}', "invalid JSON: NaN is not allowed"),
        ('{"topic":"a","value":1,"value":2}', "field 'value' occurs twice"),
        ('{"topic":"a","value":{"t":1,"t":1}}', "field 't' occurs twice"),
        ('{"topic":"a","value":1e999}', "value contains a number that is too large for JSON"),
        ('{"topic":"a","value":"x","qos":3}', "qos must be 0, 1 or 2, got 3"),
        ('{"topic":"a","value":"x","qos":true}', "qos must be 0, 1 or 2, got True"),
        ('{"topic":"a","value":"x","retain":1}', "retain must be true or false, got 1"),
        (
            '{"topic":"a","value":"x","colour":1}',
            (
                "unknown field 'colour' (known: topic, value, value_base64, publisher, qos, "
                "retain, properties_base64)"
            ),
        ),
        (
            '{"topic":"a/+","value":"x"}',
            "topic must not have the wildcards + and #: topic='a/+'",
        ),
        ('{"topic":"a","value":' + "[" * 100_000, "JSON is nested too deeply"),
    ],
)
def test_a_bad_json_line_says_why(line: str | bytes, reason: str) -> None:
    assert from_json(line) == [BadLine(1, reason)]


def test_blank_lines_count_but_are_no_rows() -> None:
    good = '{"topic":"a","value":"x"}\n'
    assert from_json(good, "\n", " \t\r\n", "?\n", good) == [
        RowToAppend(b"a", b"x"),
        BadLine(4, "invalid JSON: Expecting value at column 1"),
        RowToAppend(b"a", b"x"),
    ]


def test_csv_rows_stand_below_their_header() -> None:
    text = (
        "topic, value ,publisher,qos,retain\r\n"
        "a/b,21.5,p,1,true\r\n"
        'a,"x,\n""y""",,,\r\n'
        "\r\n"
        "ä,,p,2,0\r\n"
    )
    assert from_csv("\ufeff" + text) == [
        RowToAppend(b"a/b", b"21.5", b"p", 0b101),
        RowToAppend(b"a", b'x,\n"y"'),
        RowToAppend("ä".encode(), b"", b"p", 2),
    ]


def test_csv_values_may_be_any_bytes_and_topics_only_utf_8() -> None:
    assert from_csv(b"topic,value\na,\xff\xfe\n\xff,x\n") == [
        RowToAppend(b"a", b"\xff\xfe"),
        BadLine(3, "invalid UTF-8"),
    ]


def test_csv_values_may_be_base64_and_longer_than_the_module_allows_by_itself() -> None:
    assert from_csv("topic,value,value_base64\na,,AP8=\na,x,\na,x,AP8=\n") == [
        RowToAppend(b"a", b"\x00\xff"),
        RowToAppend(b"a", b"x"),
        BadLine(4, "value and value_base64 exclude each other; give one of them"),
    ]
    assert VALUE_BYTES_MAX > 200_000
    assert from_csv("topic,value\na," + "x" * 200_000) == [RowToAppend(b"a", b"x" * 200_000)]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("a", "expected 4 fields as in the header, got 1"),
        ("a,x,,,", "expected 4 fields as in the header, got 5"),
        ("a,x,7,", "qos must be 0, 1 or 2, got '7'"),
        ("a,x,,maybe", "retain must be true or false, got 'maybe'"),
        (",x,,", "topic must have at least one character"),
        ('a,"x"y,,', "invalid CSV: ',' expected after '\"'"),
    ],
)
def test_a_bad_csv_line_says_why_and_the_next_is_read(line: str, reason: str) -> None:
    assert from_csv(f"topic,value,qos,retain\n{line}\nb,y,,\n") == [
        BadLine(2, reason),
        RowToAppend(b"b", b"y"),
    ]


@pytest.mark.parametrize("header", ["value", "topic", "topic,value,colour", '"a"b'])
def test_a_bad_csv_header_is_refused(header: str) -> None:
    with pytest.raises(UsageError, match="the first line"):
        from_csv(f"{header}\n1,2,3\n")


def test_bytes_that_are_not_text_are_not_shown_as_names_of_columns() -> None:
    with pytest.raises(UsageError, match=r"^the first line is not text; expected CSV"):
        from_csv(b"\x8a\x12\xff,2\n1,2\n")


@pytest.mark.parametrize("header", ["topic,topic,value", "value,topic, value"])
def test_a_column_that_is_named_twice_is_refused(header: str) -> None:
    repeated = header.split(",", 1)[0]
    with pytest.raises(UsageError) as caught:
        from_csv(f"{header}\n1,2,3\n")
    assert str(caught.value) == f"column {repeated!r} occurs twice in the first line"


def test_a_publisher_that_is_too_long_is_a_bad_line_of_csv() -> None:
    assert from_csv(f"topic,value,publisher\na,x,{'p' * 65_536}\nb,y,p\n") == [
        BadLine(2, "publisher must have at most 65535 bytes, got 65536"),
        RowToAppend(b"b", b"y", b"p"),
    ]


def test_an_empty_file_holds_no_rows() -> None:
    assert (from_json(), from_csv(""), from_csv("topic,value\n")) == ([], [], [])


def rows() -> Iterator[RowToAppend | BadLine]:
    yield RowToAppend(b"a", b"1", b"p", 1, b"!")
    yield RowToAppend(b"b", b"2")
    yield BadLine(3, "odd")
    yield RowToAppend(b"c", b"3")


def test_rows_are_gathered_into_columns() -> None:
    bad = BadLines()
    assert list(gather(rows(), 2, bad)) == [
        Columns([b"a", b"b"], [b"1", b"2"], [b"p", b""], [1, 0], [b"!", b""]),
        Columns([b"c"], [b"3"], [b""], [0], [b""]),
    ]
    assert bad == BadLines(1, [BadLine(3, "odd")])


def test_a_bad_line_ends_the_gathering_before_its_group() -> None:
    groups = gather(rows(), 3, None)
    with pytest.raises(UsageError, match="line 3: odd; correct the line, or pass --skip-bad"):
        next(groups)


def test_of_many_bad_lines_the_first_are_kept() -> None:
    bad = BadLines()
    for number in range(1, 100):
        bad.add(BadLine(number, "odd"))
    assert (bad.count, [line.number for line in bad.first]) == (99, [1, 2, 3, 4, 5])
