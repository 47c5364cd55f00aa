"""docs/reference/mqtt.md against the tests: each statement of MQTT has a line, each line a test."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from siltstone.broker.control.sys_topics import SysTopics
from siltstone.topic.grammar import TopicFilter
from tests.support.broker_core import Core

TESTS = Path(__file__).parent
DOCUMENT = TESTS.parent / "docs" / "reference" / "mqtt.md"
TOPICS = DOCUMENT.with_name("sys-topics.md")
VERSIONS = ("5.0", "3.1.1")

REFERENCE = re.compile(r"`([\w/]+\.py(?:::\w+)+)`")
ROW = re.compile(r"\| MQTT-(\d+(?:\.\d+)+-\d+) \| (\w+) \| (.+?) \| (.+) \|")
DEPARTURE = re.compile(r"\| MQTT-[\d.]+-\d+ \| [^|]+ \| ([^|]+) \|")
NUMBERED = re.compile(r"test_mqtt(311)?_(\d+)_(\d+)_(\d+)_(\d+)_")
SYS_TOPIC = re.compile(r"\| `(\$SYS/[^`]+)` \|")

# The standard itself leaves these numbers out.
GAPS = {"5.0": ["2.2.1-1"], "3.1.1": []}


class Statement(NamedTuple):
    number: str
    binds: str
    tests: list[str]


class Named(NamedTuple):
    """A test as pytest names it, from the directory of tests on."""

    name: str
    is_expected_to_fail: bool


@cache
def document() -> str:
    return DOCUMENT.read_text("utf-8")


@cache
def statements(version: str) -> list[Statement]:
    """Return the lines of one version's tables."""
    section = document().partition(f"\n## Statements of MQTT {version}\n")[2]
    return [
        Statement(number, binds, REFERENCE.findall(tests))
        for number, binds, _, tests in ROW.findall(section.partition("\n## ")[0])
    ]


@cache
def all_tests() -> list[Named]:
    """Return the tests of every file that the document names, or that bears a number."""
    files = {name.partition("::")[0] for name in REFERENCE.findall(document())}
    found: list[Named] = []
    for path in sorted(TESTS.rglob("test_*.py")):
        file, source = path.relative_to(TESTS).as_posix(), path.read_bytes()
        if file in files or b"def test_mqtt" in source:
            found += found_in(ast.parse(source), file)
    return found


def found_in(parent: ast.Module | ast.ClassDef, name: str) -> Iterator[Named]:
    for node in parent.body:
        if isinstance(node, ast.ClassDef):
            yield from found_in(node, f"{name}::{node.name}")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            marks = " ".join(map(ast.unparse, node.decorator_list))
            yield Named(f"{name}::{node.name}", "mark.xfail" in marks)


def missing_before(number: str, following: str) -> list[str]:
    """Return the numbers that a paragraph skips between two statements that follow each other."""
    (section, last), (next_section, first) = (each.rsplit("-", 1) for each in (number, following))
    start = int(last) + 1 if section == next_section else 1
    return [f"{next_section}-{index}" for index in range(start, int(first))]


def test_every_test_that_is_named_exists() -> None:
    names = {test.name for test in all_tests()}
    assert sorted(set(REFERENCE.findall(document())) - names) == []


def test_no_statement_stands_twice_or_is_left_out() -> None:
    for version in VERSIONS:
        numbers = [statement.number for statement in statements(version)]
        assert [number for number, count in Counter(numbers).items() if count > 1] == []
        skipped = [
            number for pair in pairwise(["0-0", *numbers]) for number in missing_before(*pair)
        ]
        assert skipped == GAPS[version]


def test_the_document_says_how_many_statements_there_are() -> None:
    counts = [len(statements(version)) for version in VERSIONS]
    assert f"{counts[0]} normative statements of 5.0 and the {counts[1]} of 3.1.1" in document()


def test_every_statement_that_binds_a_server_has_a_test() -> None:
    assert {statement.binds for version in VERSIONS for statement in statements(version)} == {
        "server",
        "client",
        "both",
    }
    assert [
        f"{version}: {statement.number}"
        for version in VERSIONS
        for statement in statements(version)
        if statement.binds != "client" and not statement.tests
    ] == []


def test_every_test_that_bears_a_number_stands_at_its_statement() -> None:
    by_number = {
        (version, statement.number): statement.tests
        for version in VERSIONS
        for statement in statements(version)
    }
    unnamed = []
    for test in all_tests():
        if found := NUMBERED.match(test.name.rpartition("::")[2]):
            version = "3.1.1" if found[1] else "5.0"
            number = "{}.{}.{}-{}".format(*found.groups()[1:])
            if test.name not in by_number.get((version, number), []):
                unnamed.append(f"MQTT-{number} of {version}: `{test.name}`")
    assert unnamed == []


def test_what_is_not_obeyed_is_said() -> None:
    named = {test for statement in statements("5.0") for test in statement.tests} | {
        test for statement in statements("3.1.1") for test in statement.tests
    }
    failing = {test.name for test in all_tests() if test.is_expected_to_fail}
    section = document().partition("\n## Statements that are not obeyed\n")[2].partition("\n## ")[0]
    told = {test for tests in DEPARTURE.findall(section) for test in REFERENCE.findall(tests)}
    assert told == failing & named


def test_every_topic_of_the_server_is_told() -> None:
    told = [TopicFilter.parse(text) for text in SYS_TOPIC.findall(TOPICS.read_text("utf-8"))]
    topics = [b"$SYS/broker/" + name for name in SysTopics(Core().broker).values(10.0)]
    matched = {topic: [each.text for each in told if each.matches(topic)] for topic in topics}
    assert [topic for topic, filters in matched.items() if len(filters) != 1] == []
    assert {text for filters in matched.values() for text in filters} == {
        each.text for each in told
    }
