from __future__ import annotations

import os
import sys
from pathlib import PurePath

import pyspark
import pytest

import siltstone
from siltstone.errors import UsageError
from siltstone.pipeline.spark.java import Java
from siltstone.pipeline.spark.session import (
    check_pandas,
    session_settings,
    spark_environment,
    worker_environment,
    worker_search_path,
)

SCRATCH = PurePath("/scratch")
JAVA = Java(executable=PurePath("/java"), major=17)
ARROW = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
SOURCE = PurePath(siltstone.__file__).parent.parent


def test_a_pandas_that_spark_cannot_use_is_refused() -> None:
    check_pandas("2.3.3")
    with pytest.raises(UsageError, match=r"needs pandas below 3: pandas=3\.1\.1"):
        check_pandas("3.1.1")


def test_spark_is_told_what_our_tables_need() -> None:
    settings = session_settings(
        master="local[2]", memory="512m", java_options="-Xss4m", java=JAVA, scratch=SCRATCH
    )
    assert settings == {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.driver.memory": "512m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"{ARROW} -Xss4m",
        "spark.executor.extraJavaOptions": ARROW,
        "spark.local.dir": "/scratch/local",
        "spark.sql.files.minPartitionNum": str(4 * (os.cpu_count() or 2)),
        "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
        "spark.sql.shuffle.partitions": str(max(4, 2 * (os.cpu_count() or 2))),
        "spark.sql.warehouse.dir": "/scratch/warehouse",
    }


def test_a_cluster_is_reached_by_the_address_of_the_machine() -> None:
    settings = session_settings(
        master="spark://host:7077", memory="1g", java_options="", java=JAVA, scratch=SCRATCH
    )
    assert not {"spark.driver.host", "spark.local.dir"} & set(settings)
    assert "SPARK_LOCAL_IP" not in spark_environment({}, master="spark://h:1", scratch=SCRATCH)


def test_java_brings_options_of_its_own() -> None:
    java = Java(executable=PurePath("/java"), major=25)
    settings = session_settings(
        master="local", memory="1g", java_options="-Xss4m", java=java, scratch=SCRATCH
    )
    assert settings["spark.driver.extraJavaOptions"] == f"{ARROW} -XX:+UseParallelGC -Xss4m"


def test_spark_runs_with_this_python_and_finds_our_package() -> None:
    environment = spark_environment(
        {"PYTHONPATH": "/mine", "SPARK_HOME": "/another/spark"}, master="local[2]", scratch=SCRATCH
    )
    assert environment == {
        "JAVA_HOME": "/scratch/java",
        "SPARK_HOME": str(PurePath(pyspark.__file__).parent),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_CONF_DIR": "/scratch/conf",
        "SPARK_LOCAL_IP": "127.0.0.1",
        **worker_search_path(SOURCE, "/mine"),
    }


def test_workers_are_told_where_the_package_is_unless_it_is_installed() -> None:
    source = PurePath("/clone/src")
    assert worker_search_path(source, "/mine") == {"PYTHONPATH": "/clone/src:/mine"}
    assert worker_search_path(source, "") == {"PYTHONPATH": "/clone/src"}
    assert worker_search_path(PurePath("/lib/site-packages"), "/mine") == {}
    assert worker_search_path(PurePath("/lib/dist-packages"), "") == {}


def test_the_users_own_configuration_of_spark_is_kept() -> None:
    environment = spark_environment({"SPARK_CONF_DIR": "/mine"}, master="local", scratch=SCRATCH)
    assert environment["SPARK_CONF_DIR"] == "/mine"


def test_workers_import_from_the_current_directory_only_where_we_do() -> None:
    assert worker_environment(["/bin", "/lib"], "/here") == {"PYTHONSAFEPATH": "1"}
    assert worker_environment(["", "/lib"], "/here") == {}
    assert worker_environment(["/here", "/lib"], "/here") == {}
