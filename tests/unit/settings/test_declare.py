from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import pytest

from siltstone.errors import UsageError
from siltstone.settings.declare import (
    Declared,
    Kind,
    Scope,
    Setting,
    check_values,
    declared,
    fixed_fields,
    from_values,
    to_values,
    values_of,
    with_changes,
)

SIZE = Setting(kind=Kind.SIZE, above=0, limit=1 << 20, multiple_of=4, help="A size.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    count: Annotated[int, Setting(kind=Kind.COUNT, low=1, high=9, help="A count.")] = 1
    size_bytes: Annotated[int | None, SIZE] = None
    other_bytes: Annotated[int, SIZE.within(low=0)] = 4
    wait: Annotated[float, Setting(kind=Kind.SECONDS, low=0, high=60, help="A time.")] = 0.5
    levels: Annotated[
        tuple[int, ...], Setting(kind=Kind.LEVELS, low=-1, option="level", help="Levels.")
    ] = (3, -1)
    color: Annotated[
        str,
        Setting(kind=Kind.CHOICE, choices=("red", "none"), scope=Scope.CREATION, help="A color."),
    ] = "none"
    flag: Annotated[bool, Setting(kind=Kind.FLAG, scope=Scope.CREATION, help="A flag.")] = True

    def __post_init__(self) -> None:
        check_values(Sample, values_of(self))


KNOWN = declared(Sample)


def test_a_declaration_gives_every_name_and_text() -> None:
    assert [
        (known.field, known.option, known.metavar, known.expected, known.show(known.default))
        for known in KNOWN.values()
    ] == [
        ("count", "count", "N", "a number from 1 to 9", "1"),
        ("size_bytes", "size-bytes", "SIZE", "a size above 0, a multiple of 4, or none", "none"),
        ("other_bytes", "other-bytes", "SIZE", "a size of at least 0, a multiple of 4", "4 B"),
        ("wait", "wait", "TIME", "a time from 0 to 60 seconds", "500ms"),
        ("levels", "level", "N,N…", "one or more numbers of at least -1", "3,-1"),
        ("color", "color", "red|none", "one of red, none", "none"),
        ("flag", "flag", "true|false", "true or false", "true"),
    ]


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("count", 0, "a number from 1 to 9"),
        ("count", 10, "a number from 1 to 9"),
        ("count", True, "a number from 1 to 9"),
        ("count", 1.0, "a number from 1 to 9"),
        ("count", None, "a number from 1 to 9"),
        ("size_bytes", 0, "a size above 0, a multiple of 4, or none"),
        ("size_bytes", 5, "a size above 0, a multiple of 4, or none"),
        ("size_bytes", (1 << 20) + 4, "at most 1048576"),
        ("wait", float("nan"), "a time from 0 to 60 seconds"),
        ("wait", 60.5, "a time from 0 to 60 seconds"),
        ("levels", (), "one or more numbers of at least -1"),
        ("levels", [1], "one or more numbers of at least -1"),
        ("levels", (1, -2), "one or more numbers of at least -1"),
        ("levels", (1, True), "one or more numbers of at least -1"),
        ("color", "blue", "one of red, none"),
        ("flag", 1, "true or false"),
    ],
)
def test_a_value_outside_its_declaration_is_refused(field: str, value: Any, expected: str) -> None:
    with pytest.raises(UsageError) as caught:
        Sample(**{field: value})
    assert str(caught.value) == f"setting {field} must be {expected}: {field}={value!r}"


@pytest.mark.parametrize(
    ("field", "value"),
    [("count", 9), ("size_bytes", None), ("size_bytes", 1 << 20), ("wait", 60), ("levels", (-1,))],
)
def test_the_ends_of_a_range_are_allowed(field: str, value: Any) -> None:
    assert values_of(Sample(**{field: value}))[field] == value


def test_a_complaint_names_the_setting_as_the_caller_does() -> None:
    def option(known: Declared) -> str:
        return f"--{known.option}"

    with pytest.raises(UsageError) as caught:
        check_values(Sample, {"count": 1, "levels": (-5,)}, name=option)
    assert str(caught.value) == (
        "--level must be one or more numbers of at least -1: --level=(-5,)"
    )


@pytest.mark.parametrize(
    ("field", "text", "value"),
    [
        ("count", "5", 5),
        ("size_bytes", "4KiB", 4096),
        ("size_bytes", "none", None),
        ("wait", "1m", 60.0),
        ("levels", "5,-1", (5, -1)),
        ("color", "none", "none"),
        ("flag", "false", False),
    ],
)
def test_a_text_is_parsed_and_shown_by_its_kind(field: str, text: str, value: Any) -> None:
    assert KNOWN[field].parse(text) == value
    assert KNOWN[field].parse(KNOWN[field].show(value)) == value


@pytest.mark.parametrize("field", ["count", "size_bytes", "wait", "levels", "flag"])
def test_a_text_of_another_kind_is_refused(field: str) -> None:
    with pytest.raises(UsageError, match="expected "):
        KNOWN[field].parse("many")


def test_values_survive_json_and_unknown_names_are_refused() -> None:
    settings = Sample(levels=(0, 1), size_bytes=8)
    assert to_values(settings)["levels"] == [0, 1]
    assert from_values(Sample, to_values(settings)) == settings
    with pytest.raises(UsageError, match=r"^unknown database settings: colour, size$"):
        from_values(Sample, {"size": 1, "count": 1, "colour": 2})


def test_settings_change_except_those_of_the_creation() -> None:
    assert fixed_fields(Sample) == {"color", "flag"}
    assert with_changes(Sample(), {"count": 2, "flag": True}) == Sample(count=2)
    with pytest.raises(UsageError) as caught:
        with_changes(Sample(), {"flag": False, "color": "red", "count": 2})
    assert str(caught.value) == (
        "these settings cannot change after a database was created: color, flag"
    )
