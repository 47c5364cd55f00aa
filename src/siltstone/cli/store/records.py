"""Parsing of rows from text: JSON lines and CSV, a line at a time.

    {"topic": "a/b", "value": "text, or any JSON", "publisher": "p", "qos": 1, "retain": false}
    topic,value,publisher,qos,retain

`value_base64` has a value that is not text, `properties_base64` MQTT properties. The output of
`siltstone read` is accepted too: the columns that the store sets itself are ignored, so rows that
are appended again get new times and serials. An invalid line becomes a BadLine, and reading
continues with the next line.
"""

from __future__ import annotations

import base64
import csv
import io
import json
import sys
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, BinaryIO, Final, NamedTuple, Never

from siltstone.errors import UsageError
from siltstone.rows.batch import RETAIN
from siltstone.store.log.write.partition import Columns
from siltstone.store.slab.settings import VALUE_BYTES_MAX
from siltstone.topic.grammar import TOPIC_SIZE_MAX, check_topic

FIELDS: Final = (
    "topic",
    "value",
    "value_base64",
    "publisher",
    "qos",
    "retain",
    "properties_base64",
)
_SET_BY_STORE: Final = ("timestamp", "shard", "generation", "stream", "serial")
_KNOWN: Final = frozenset(FIELDS) | frozenset(_SET_BY_STORE)
_CSV_QOS: Final = {"": 0, "0": 0, "1": 1, "2": 2}
_CSV_RETAIN: Final = {"": False, "0": False, "false": False, "1": True, "true": True}
_FIRST_MAX: Final = 5
# The JSON names of Python types.
_KINDS: Final[Mapping[type, str]] = {
    bool: "a boolean",
    float: "a number",
    int: "a number",
    list: "an array",
    str: "a string",
}


class RowToAppend(NamedTuple):
    """A row to append."""

    topic: bytes
    value: bytes
    publisher: bytes = b""
    flags: int = 0
    properties: bytes = b""


@dataclass(frozen=True, slots=True)
class BadLine:
    """An invalid line, and the reason."""

    number: int
    reason: str

    def __str__(self) -> str:
        return f"line {self.number}: {self.reason}"


@dataclass(slots=True)
class BadLines:
    """The number of skipped lines, and the first of them."""

    count: int = 0
    first: list[BadLine] = field(default_factory=list)

    def add(self, line: BadLine) -> None:
        """Count a line, and keep it if it is one of the first."""
        self.count += 1
        if len(self.first) < _FIRST_MAX:
            self.first.append(line)


def read_json_lines(lines: Iterable[bytes]) -> Generator[RowToAppend | BadLine, None, None]:
    """Yield a row or a BadLine for each line that is not blank."""
    for number, line in enumerate(lines, 1):
        if line.isspace():
            continue
        try:
            yield _from_json(line)
        except RecursionError:
            yield BadLine(number, "JSON is nested too deeply")
        except (UsageError, ValueError) as exc:
            yield BadLine(number, _reason(exc))


def read_csv(file: BinaryIO) -> Generator[RowToAppend | BadLine, None, None]:
    """Yield a row or a BadLine for each line below the header; close it before the file.

    Raises: UsageError for the header.
    """
    # Bytes that are not UTF-8 are preserved in a value; elsewhere they are refused.
    text = io.TextIOWrapper(file, "utf-8-sig", errors="surrogateescape", newline="")
    csv.field_size_limit(VALUE_BYTES_MAX)
    reader = csv.reader(text, strict=True)
    try:
        header = _csv_header(reader)
        while header:
            try:
                fields = next(reader)
                if fields:
                    yield _from_csv(header, fields)
            except StopIteration:
                break
            except csv.Error as exc:
                yield BadLine(reader.line_num, f"invalid CSV: {exc}")
            except (UsageError, ValueError) as exc:
                yield BadLine(reader.line_num, _reason(exc))
    finally:
        # The caller closes the file.
        text.detach()


def gather(
    records: Iterable[RowToAppend | BadLine], rows_max: int, bad: BadLines | None
) -> Iterator[Columns]:
    """Yield rows in groups of rows_max; bad lines are collected in `bad`, if it is given.

    Raises: UsageError at the first bad line otherwise; the rows of its group are not yielded.
    """
    group: list[RowToAppend] = []
    for record in records:
        if isinstance(record, RowToAppend):
            group.append(record)
            if len(group) == rows_max:
                yield _columns(group)
                group = []
        elif bad is None:
            raise UsageError(f"{record}; correct the line, or pass --skip-bad")
        else:
            bad.add(record)
    if group:
        yield _columns(group)


@lru_cache(maxsize=100_000)
def _checked(topic: str) -> bytes:
    """Return the bytes of a topic, checked once. Raises: InvalidTopicError."""
    encoded = topic.encode()
    check_topic(encoded)
    return encoded


def _columns(group: list[RowToAppend]) -> Columns:
    topics, values, publishers, flags, properties = map(list, zip(*group, strict=True))
    return Columns(topics, values, publishers, flags, properties)


def _from_json(line: bytes) -> RowToAppend:
    document = _parsed(line)
    if not isinstance(document, dict):
        raise UsageError(f"expected a JSON object, got {_KINDS.get(type(document), 'null')}")
    if unknown := document.keys() - _KNOWN:
        raise UsageError(f"unknown field {min(unknown)!r} (known: {', '.join(FIELDS)})")
    topic, publisher = document.get("topic"), document.get("publisher", "")
    qos, retain = document.get("qos", 0), document.get("retain", False)
    if not isinstance(topic, str) or not isinstance(publisher, str):
        raise UsageError(
            "topic is missing" if "topic" not in document else "topic and publisher must be strings"
        )
    if type(qos) is not int or not 0 <= qos <= 2:
        raise UsageError(f"qos must be 0, 1 or 2, got {qos!r}")
    if not isinstance(retain, bool):
        raise UsageError(f"retain must be true or false, got {retain!r}")
    return RowToAppend(
        _checked(topic),
        _json_value(document),
        _publisher(publisher),
        qos | (RETAIN if retain else 0),
        _decoded(document.get("properties_base64", "")),
    )


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line, parse_constant=_refuse_constant, object_pairs_hook=_refuse_repeated)
    except (json.JSONDecodeError, UnicodeError):
        raise
    except ValueError as exc:
        # Python refuses longer numbers, because parsing takes quadratic time.
        digits_max = sys.get_int_max_str_digits()
        raise UsageError(f"a number has more than {digits_max} digits") from exc


def _publisher(text: str) -> bytes:
    encoded = text.encode()
    if len(encoded) > TOPIC_SIZE_MAX:
        raise UsageError(f"publisher must have at most {TOPIC_SIZE_MAX} bytes, got {len(encoded)}")
    return encoded


def _json_value(document: Mapping[str, Any]) -> bytes:
    if "value" not in document and "value_base64" not in document:
        raise UsageError("value is missing; give value or value_base64")
    if "value" in document and "value_base64" in document:
        raise UsageError("value and value_base64 exclude each other; give one of them")
    if "value_base64" in document:
        return _decoded(document["value_base64"])
    value = document["value"]
    if isinstance(value, str):
        return value.encode()
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except ValueError as exc:
        raise UsageError("value contains a number that is too large for JSON") from exc
    return text.encode()


def _decoded(text: object) -> bytes:
    if not isinstance(text, str):
        raise UsageError("a base64 field must be a string")
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as exc:
        raise UsageError(f"invalid base64: {exc}") from exc


def _refuse_constant(word: str) -> Never:
    raise UsageError(f"invalid JSON: {word} is not allowed")


def _refuse_repeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object; refuse repeated fields, which are ambiguous. Raises: UsageError."""
    document = dict(pairs)
    if len(document) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise UsageError(f"field {repeated!r} occurs twice")
    return document


def _csv_header(reader: Iterator[list[str]]) -> list[str]:
    try:
        header = [name.strip() for name in next(reader, [])]
    except csv.Error as exc:
        raise UsageError(f"invalid CSV header in the first line: {exc}") from exc
    if not "".join(header).isprintable():
        raise UsageError("the first line is not text; expected CSV with a header line")
    unknown = [name for name in header if name not in _KNOWN]
    values = {"value", "value_base64"} & set(header)
    if header and (unknown or "topic" not in header or not values):
        raise UsageError(
            f"unknown column {unknown[0]!r} in the first line (known: {', '.join(FIELDS)})"
            if unknown
            else "the first line must name the columns; topic and value are required, got "
            f"{', '.join(header)!r}"
        )
    if repeated := [name for name in header if header.count(name) > 1]:
        raise UsageError(f"column {repeated[0]!r} occurs twice in the first line")
    return header


def _from_csv(header: list[str], fields: list[str]) -> RowToAppend:
    if len(fields) != len(header):
        raise UsageError(f"expected {len(header)} fields as in the header, got {len(fields)}")
    row = dict(zip(header, fields, strict=True))
    qos, retain = _CSV_QOS.get(row.get("qos", "")), _CSV_RETAIN.get(row.get("retain", "").lower())
    if qos is None:
        raise UsageError(f"qos must be 0, 1 or 2, got {row['qos']!r}")
    if retain is None:
        raise UsageError(f"retain must be true or false, got {row['retain']!r}")
    if encoded := row.get("value_base64", ""):
        if row.get("value"):
            raise UsageError("value and value_base64 exclude each other; give one of them")
        value = _decoded(encoded)
    else:
        value = row.get("value", "").encode(errors="surrogateescape")
    return RowToAppend(
        _checked(row["topic"]),
        value,
        _publisher(row.get("publisher", "")),
        qos | (RETAIN if retain else 0),
        _decoded(row.get("properties_base64", "")),
    )


def _reason(exc: Exception) -> str:
    match exc:
        case json.JSONDecodeError():
            return f"invalid JSON: {exc.msg} at column {exc.colno}"
        case UnicodeError():
            return "invalid UTF-8"
        case _:
            return str(exc)
