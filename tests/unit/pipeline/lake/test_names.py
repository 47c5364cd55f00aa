from __future__ import annotations

import pytest

from siltstone.pipeline.lake.names import (
    ROW_COLUMNS,
    Content,
    content_of,
    field_column,
    free_name,
    level_columns,
    table_name,
)


@pytest.mark.parametrize(
    ("pattern", "table", "columns"),
    [
        ("metrics/+/cpu/socket/+/core/+", "metrics_cpu_socket_core", ["metrics", "socket", "core"]),
        ("plant/+/+", "plant", ["plant", "plant_2"]),
        ("+/temp", "temp", ["level_1"]),
        ("+/+", "levels_2", ["level_1", "level_2"]),
        ("topic/+/serial/+", "topic_serial", ["topic_2", "serial_2"]),
        ("a/+/A/+", "a_a", ["a", "A_2"]),
        ("$SYS/7 days/+", "sys_n7_days", ["n7_days"]),
        ("ä/ö/+", "levels_3", ["level_3"]),
        ("/+/#", "levels_3", ["level_2"]),
    ],
)
def test_tables_and_columns_are_called_after_the_words_of_topics(
    pattern: str, table: str, columns: list[str]
) -> None:
    levels = pattern.split("/")
    assert (table_name(levels, []), level_columns(levels)) == (table, columns)


def test_a_name_that_is_taken_gets_a_number_whatever_its_case() -> None:
    assert free_name("a", ["A", "a_2"]) == "a_3"
    assert table_name(["dead", "letter"], []) == "dead_letter_2"
    assert table_name(["plant", "+"], ["plant"]) == "plant_2"


def test_a_field_that_is_called_as_a_column_of_every_row_says_where_it_is_from() -> None:
    assert field_column(("topic",), ["topic"]) == "payload_topic"
    assert field_column(("a", "b c"), ["payload_a_b_c"]) == "a_b_c"
    assert field_column(("Topic",), ["topic", "payload_topic"]) == "payload_Topic_2"


def test_names_do_not_grow_without_end() -> None:
    assert len(table_name(["x" * 300, "y"], [])) == 80


@pytest.mark.parametrize(
    ("columns", "content"),
    [
        ([*ROW_COLUMNS, "levels", "value", "date"], "rows"),
        ([*ROW_COLUMNS, "window_start", "window_end", "rows"], "rows"),
        (["window_start", "window_end", "plant", "rows", "value_min", "date"], "windows"),
        (["topic", "value"], "other"),
        ([], "other"),
    ],
)
def test_what_a_table_holds_is_seen_by_its_columns(columns: list[str], content: Content) -> None:
    assert content_of(columns) == content
