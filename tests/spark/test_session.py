"""What `start_session` puts on the disk, and what it sets right."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path, PurePath

import pytest
from pyspark.sql import SparkSession

from siltstone.fs.posix import PosixFileSystem
from siltstone.pipeline.spark.java import Java, probe
from siltstone.pipeline.spark.session import make_scratch, start_session
from siltstone.store.database import Database
from siltstone.store.log.read.pieces import Row
from tests.support.broker_process import clean_environment


def test_the_script_drops_one_flag_and_hides_spark_from_the_driver_alone(tmp_path: Path) -> None:
    fake = tmp_path / "java"
    fake.write_text('#!/bin/sh\necho "home=$SPARK_HOME"\nfor a do echo "$a"; done\n')
    fake.chmod(0o755)
    scratch = make_scratch(
        PosixFileSystem(), PurePath(tmp_path), Java(executable=PurePath(fake), major=17)
    ).path

    def run(*arguments: str) -> list[str]:
        shim = str(scratch / "java" / "bin" / "java")
        done = subprocess.run(
            [shim, *arguments], env={"SPARK_HOME": "/s"}, capture_output=True, text=True, check=True
        )
        return done.stdout.splitlines()

    driver, launcher = "org.apache.spark.deploy.SparkSubmit", "org.apache.spark.launcher.Main"
    own = ["-XX:-UsePerfData", f"-Djava.io.tmpdir={scratch / 'tmp'}"]
    flag = "--add-modules=jdk.incubator.vector"
    assert run("-Da=b c", flag, driver, "x *") == ["home=", *own, "-Da=b c", driver, "x *"]
    assert run(launcher, driver) == ["home=/s", *own, launcher, driver]


def test_scratch_is_for_its_owner_only(tmp_path: Path) -> None:
    scratch = make_scratch(
        PosixFileSystem(), PurePath(tmp_path), Java(executable=PurePath("/java"), major=17)
    ).path
    assert Path(scratch).stat().st_mode & 0o777 == 0o700
    assert sorted(str(file.relative_to(scratch)) for file in Path(scratch).rglob("*")) == [
        "LOCK",
        "conf",
        "conf/log4j2.properties",
        "java",
        "java/bin",
        "java/bin/java",
        "tmp",
    ]


def test_what_is_no_java_is_not_taken_for_one(tmp_path: Path) -> None:
    liar = tmp_path / "java"
    liar.write_text("#!/bin/sh\necho hello\n")
    liar.chmod(0o755)
    assert [probe(PurePath(liar)), probe(PurePath(tmp_path)), probe(PurePath("/none"))] == [
        None
    ] * 3


def test_times_are_microseconds_in_utc_whoever_reads_them(spark: SparkSession) -> None:
    wanted = ("spark.sql.session.timeZone", "spark.sql.parquet.outputTimestampType")
    assert [spark.conf.get(name) for name in wanted] == ["UTC", "TIMESTAMP_MICROS"]


def test_an_active_session_is_used_again(spark: SparkSession) -> None:
    assert start_session() is spark


# As in a virtual environment that is not activated, where python3 is another one.
PLAIN = """
import sys
from pyspark.sql import SparkSession
from siltstone.pipeline import register
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
register(spark)
print(spark.read.format("siltstone").load(sys.argv[1]).count())
"""


@pytest.mark.timeout(400)
def test_a_plain_session_finds_the_python_of_an_environment_that_is_not_activated(
    database: Database, path: str, tmp_path: Path
) -> None:
    database.append([Row("a", b"1"), Row("a", b"2")]).wait()
    other = tmp_path / "bin" / "python3"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\necho no module named pyspark >&2\nexit 1\n")
    other.chmod(0o755)
    environment = {
        name: value
        for name, value in clean_environment().items()
        if not name.startswith(("PYSPARK", "SPARK", "VIRTUAL_ENV"))
    }
    environment |= {"PATH": f"{other.parent}:/usr/bin:/bin", "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, "-c", PLAIN, path], capture_output=True, check=False, env=environment
    )
    assert (done.returncode, done.stdout) == (0, b"2\n"), done.stderr.decode()
