from __future__ import annotations

import pytest

from siltstone.errors import UsageError
from siltstone.scan.ingest.columns import Given
from siltstone.scan.ingest.options import WriteOptions, parse_write_options
from siltstone.scan.node import Node

WORD = "never shown"


def test_every_option_is_read_and_those_of_spark_are_passed_over() -> None:
    assert parse_write_options(
        {
            "PATH": "file:/data",
            "database": " d ",
            "topic": "t",
            "publisher": "p",
            "writeId": "w",
            "checkpointLocation": "/c",
        }
    ) == WriteOptions(
        path="/data", database="d", given=Given(topic="t", publisher="p"), write_id="w"
    )


def test_a_node_is_named_by_its_url() -> None:
    options = parse_write_options({"url": "grpc://host:1", "username": "u", "password": WORD})
    assert options.node == Node(url="grpc+tcp://host:1", username="u", password=WORD)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "path is missing: set path to the data directory of the store, or url to a node"),
        (
            {"path": "/d", "databse": "x"},
            "unknown option databse of a write; did you mean database",
        ),
        ({"path": "/d", "filter": "#"}, "unknown option filter of a write; supported: path, url"),
        (
            {"path": "/d", "topic": "a/#"},
            "option topic must be a topic: topic must not have the wildcards",
        ),
        (
            {"path": "/d", "url": "grpc://h"},
            "set either path .a data directory. or url",
        ),
    ],
    ids=str,
)
def test_a_wrong_option_is_refused_with_a_sentence(options: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_write_options(options)
