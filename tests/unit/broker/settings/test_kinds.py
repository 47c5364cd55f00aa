from __future__ import annotations

import tomllib
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field, ValidationError

from siltstone.broker.settings.kinds import (
    Count,
    DatabaseName,
    FilterText,
    HookName,
    Mode,
    OptionalBool,
    OptionalSeconds,
    OptionalSize,
    Seconds,
    Size,
    expectation,
    size_text,
    toml_text,
    wrong,
)


class Sample(BaseModel):
    count: Count = Field(default=1, ge=1, le=9)
    size: Size = Field(default=2 * 1024**2, ge=1024, multiple_of=1024)
    seconds: Seconds = Field(default=0.5, gt=0, le=60)
    optional_size: OptionalSize = Field(default=None, gt=0)
    optional_seconds: OptionalSeconds = Field(default=3.0, gt=0)
    optional_bool: OptionalBool = None
    mode: Mode = 0o640
    topics: FilterText = "a/+"
    hook: HookName = ""
    database: DatabaseName = "messages"
    choice: Literal["red", "blue"] = "red"
    flag: bool = True
    text: str = 'a "\x7f\n€'
    below: tuple[BaseModel, ...] = ()


FIELDS = Sample.model_fields


@pytest.mark.parametrize(
    ("key", "given", "value"),
    [
        ("count", 7, 7),
        ("count", "7", 7),
        ("size", 2048, 2048),
        ("size", "2048", 2048),
        ("size", "4MiB", 4 * 1024**2),
        ("size", "3 kib", 3072),
        ("size", "1.024 MB", 1_024_000),
        ("seconds", 2, 2.0),
        ("seconds", "2.5", 2.5),
        ("seconds", "250ms", 0.25),
        ("optional_seconds", "1h 30m", 5400.0),
        ("optional_seconds", "30d", 2_592_000.0),
        ("optional_size", "none", None),
        ("optional_size", "1 GiB", 1024**3),
        ("optional_seconds", "none", None),
        ("optional_seconds", "60", 60.0),
        ("optional_bool", "none", None),
        ("optional_bool", "true", True),
        ("optional_bool", False, False),
        ("mode", "0o600", 0o600),
        ("mode", "600", 0o600),
        ("mode", 0o600, 0o600),
        ("topics", "$SYS/#", "$SYS/#"),
        ("hook", "our.hooks:decide", "our.hooks:decide"),
        ("database", "7.x_y-z", "7.x_y-z"),
    ],
)
def test_a_value_may_be_written_in_several_ways(key: str, given: Any, value: Any) -> None:
    assert getattr(Sample.model_validate({key: given}), key) == value


@pytest.mark.parametrize(
    ("key", "given"),
    [
        ("count", True),
        ("count", 0),
        ("count", 10),
        ("count", 1.5),
        ("size", True),
        ("size", "1000"),
        ("size", "4 parsecs"),
        ("size", "none"),
        ("size", "-1 KiB"),
        ("seconds", True),
        ("seconds", 0),
        ("seconds", 61),
        ("optional_size", 0),
        ("optional_size", "zero"),
        ("optional_bool", "perhaps"),
        ("mode", "rw"),
        ("mode", 0o1000),
        ("mode", True),
        ("topics", "a/#/b"),
        ("topics", "$share/group/a"),
        ("hook", "module"),
        ("hook", "module:"),
        ("hook", "module:call()"),
        ("database", ""),
        ("database", "_retained"),
        ("database", "../x"),
    ],
)
def test_a_value_that_cannot_work_is_refused_at_its_key(key: str, given: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        Sample.model_validate({key: given})
    assert {error["loc"][0] for error in caught.value.errors()} == {key}


def test_a_bad_filter_is_refused_with_the_rule_that_it_breaks() -> None:
    with pytest.raises(ValidationError, match="# must be the last level, alone"):
        Sample(topics="a/#/b")
    with pytest.raises(ValidationError, match="must not be a shared filter"):
        Sample(topics="$share/group/a")


def test_every_value_is_named_with_its_bounds() -> None:
    assert {key: expectation(field) for key, field in FIELDS.items()} == {
        "count": "a whole number from 1 to 9",
        "size": "a size, at least 1 KiB, a multiple of 1 KiB",
        "seconds": "a number of seconds above 0, up to 60",
        "optional_size": "none, or a size above 0",
        "optional_seconds": "none, or a number of seconds above 0",
        "optional_bool": "true, false or none",
        "mode": "permissions from 0o0 to 0o777",
        "topics": "a topic filter",
        "hook": 'a text as "module:callable"',
        "database": "a name of letters, digits, _, . and - that begins with a letter or digit",
        "choice": "one of red, blue",
        "flag": "true or false",
        "text": "a text",
        "below": "a list of tables",
    }


def test_every_value_is_written_as_toml_that_gives_it_again() -> None:
    written = {key: toml_text(field, field.default) for key, field in FIELDS.items()}
    assert written == {
        "count": "1",
        "size": '"2 MiB"',
        "seconds": "0.5",
        "optional_size": '"none"',
        "optional_seconds": "3.0",
        "optional_bool": '"none"',
        "mode": "0o640",
        "topics": '"a/+"',
        "hook": '""',
        "database": '"messages"',
        "choice": '"red"',
        "flag": "true",
        "text": '"a \\"\\u007f\\n€"',
        "below": "[]",
    }
    document = "\n".join(f"{key} = {text}" for key, text in written.items())
    assert Sample.model_validate(tomllib.loads(document)) == Sample()


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0"),
        (1023, "1023"),
        (1024, "1 KiB"),
        (1536, "1536"),
        (64 * 1024**2, "64 MiB"),
        (1024**3, "1 GiB"),
        (1024**4, "1024 GiB"),
    ],
)
def test_a_size_is_written_exactly(size_bytes: int, text: str) -> None:
    assert size_text(size_bytes) == text


def test_what_does_not_go_together_carries_its_key() -> None:
    error = wrong("is missing", "listeners", 0)
    assert (error.message(), error.context) == (
        "is missing",
        {"sentence": "is missing", "key": ("listeners", 0)},
    )
