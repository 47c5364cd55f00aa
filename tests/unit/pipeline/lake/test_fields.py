from __future__ import annotations

import pyarrow as pa

from siltstone.pipeline.lake.fields import (
    FIELDS_MAX,
    Field,
    column_of,
    extended,
    paths_of_type,
    paths_of_value,
    struct_of,
)

DOCUMENT = {
    "n": 1,
    "f": 1.5,
    "s": "x",
    "b": True,
    "none": None,
    "o": {"p": {"q": 2}},
    "l": [1, 2.5],
    "mixed": [1, "x"],
    "objects": [{"a": 1}],
    "lists": [[1]],
    "empty": [],
}
PATHS = [
    (("n",), "integer"),
    (("f",), "double"),
    (("s",), "string"),
    (("b",), "boolean"),
    (("o", "p", "q"), "integer"),
    (("l",), "array<double>"),
]


def field(path: str, kind: str = "double") -> Field:
    return Field(path=tuple(path.split(".")), column=path.replace(".", "_"), kind=kind)


def test_what_can_be_a_column_is_found_in_one_document() -> None:
    assert list(paths_of_value(DOCUMENT)) == PATHS


def test_what_can_be_a_column_is_found_in_a_type() -> None:
    kind = pa.struct(
        [
            ("n", pa.int64()),
            ("t", pa.timestamp("s")),
            ("none", pa.null()),
            ("o", pa.struct([("p", pa.bool_())])),
            ("l", pa.list_(pa.string())),
            ("objects", pa.list_(pa.struct([("a", pa.int64())]))),
        ]
    )
    assert list(paths_of_type(kind)) == [
        (("n",), "double"),
        (("t",), "string"),
        (("o", "p"), "boolean"),
        (("l",), "array<string>"),
    ]


def test_objects_that_are_too_deep_stay_in_the_payload() -> None:
    assert list(paths_of_value({"a": {"b": {"c": {"d": {"e": {"f": 1}}}}}})) == []


def test_the_first_type_of_a_field_wins_and_columns_are_free() -> None:
    found = [(("a",), "string"), (("topic",), "double"), (("a", "b"), "double"), (("c",), "double")]
    assert extended([field("a")], found, ["topic", "C"]) == (
        field("a"),
        Field(path=("topic",), column="payload_topic", kind="double"),
        Field(path=("c",), column="payload_c", kind="double"),
    )


def test_a_payload_has_no_more_columns_than_a_table_can_take() -> None:
    found = [((f"f{number}",), "double") for number in range(FIELDS_MAX + 5)]
    assert len(extended([], found, [])) == FIELDS_MAX


def test_fields_make_a_type_and_come_out_of_it_again() -> None:
    fields = [field("a.b"), field("a.c", "string"), field("d"), field("d.e")]
    kind = struct_of(fields)
    inner = pa.struct([("b", pa.float64()), ("c", pa.string())])
    assert kind == pa.struct([("a", inner), ("d", pa.float64())])
    rows = pa.array([{"a": {"b": 1.0, "c": "x"}, "d": 2.0}, {"a": None, "d": None}, None], kind)
    assert column_of(rows, ("a", "c"), pa.string()).to_pylist() == ["x", None, None]
    assert column_of(rows, ("d", "e"), pa.float64()).to_pylist() == [None, None, None]
    assert column_of(rows, ("d",), pa.string()).to_pylist() == [None, None, None]


def test_half_a_character_names_no_column() -> None:
    found = paths_of_value({"\ud800": 1, "a": {"b\udc00": {"c": 1}, "d": 1}, "\U0001f600": 1})
    assert list(found) == [(("a", "d"), "integer"), (("\U0001f600",), "integer")]
