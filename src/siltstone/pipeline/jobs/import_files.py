"""Import of files in any format that Spark reads, to topics.

A template builds the topic from columns: `plant/{site}/{sensor}`. The payload is one column, or the
other columns as JSON. Files are written one after the other, each as a write with its own name. A
repeated import therefore stores no row twice, and continues after an interruption. Each file is
checked before it is written: if it has a bad row, none of its rows is stored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final
from urllib.parse import unquote

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from siltstone.errors import UsageError
from siltstone.pipeline.answers import plain_errors
from siltstone.topic.grammar import TOPIC_SIZE_MAX

_PLACE: Final = re.compile(r"\{([^{}]*)\}")
# The reason why a row is bad; null for a good row.
_FAULT: Final = "fault"
_FORBIDDEN: Final = "[+#\\x00]"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportSettings:
    """The files to read, and how their rows are stored; `target` has the options of the sink, path
    or url.

    A row that cannot be a message stops the import, unless skips_bad is set.
    """

    source: str
    topic: str
    target: Mapping[str, str]
    format: str = "json"
    options: Mapping[str, str] = field(default_factory=dict)
    payload: str = ""
    timestamp: str = ""
    name: str = "import"
    skips_bad: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportStep:
    """A file that was stored, its rows, the skipped rows, and the number of files left."""

    file: str
    rows: int
    waiting: int
    skipped: int = 0


def import_files(
    spark: SparkSession,
    settings: ImportSettings,
    progress: Callable[[ImportStep], None] = lambda _: None,
) -> list[ImportStep]:
    """Import all files of a source. Raises: UsageError, also for a file with a bad row."""
    with plain_errors():
        reader = spark.read.format(settings.format).options(**settings.options)
        source = reader.load(settings.source)
        files = sorted(source.inputFiles())
        messages(source, settings)
    steps: list[ImportStep] = []
    for number, file in enumerate(files, 1):
        with plain_errors():
            # Use the schema of all files: the schema of a single file may be different.
            rows = messages(reader.schema(source.schema).load(_exactly(file)), settings)
            found = _looked_through(rows)
        if found["bad"] and not settings.skips_bad:
            raise UsageError(
                f"{found['first']}; no row of this file was stored, use --skip-bad to skip bad "
                f"rows: file={shown(file)} bad={found['bad']} rows={found['rows']}"
            )
        with plain_errors():
            good = rows.where(F.col(_FAULT).isNull()).drop(_FAULT)
            write = good.write.format("siltstone").mode("append").options(**settings.target)
            write.option("writeId", write_id(settings.name, file)).save()
        steps.append(
            ImportStep(
                file=file,
                rows=found["rows"] - found["bad"],
                waiting=len(files) - number,
                skipped=found["bad"],
            )
        )
        progress(steps[-1])
    return steps


def messages(rows: DataFrame, settings: ImportSettings) -> DataFrame:
    """Return rows in the columns of the sink, with a reason for each bad row.

    Raises: UsageError.
    """
    parts = template_parts(settings.topic, rows.columns)
    named = {name: _column(name).cast("string") for is_column, name in parts if is_column}
    topic = F.concat(*(named[name] if is_column else F.lit(name) for is_column, name in parts))
    columns = [topic.alias("topic"), _payload(rows, settings, set(named)).alias("payload")]
    faults = [_fault_of(name, value) for name, value in named.items()]
    faults.append(F.when(F.octet_length(topic) > TOPIC_SIZE_MAX, F.lit("topic is too long")))
    faults.append(F.when(F.octet_length(topic) == 0, F.lit("topic is empty")))
    if settings.payload:
        nothing = F.lit(f"column {settings.payload} is null, and a payload must not be null")
        faults.append(F.when(_column(settings.payload).isNull(), nothing))
    if settings.timestamp:
        _check_column(settings.timestamp, rows.columns, "--timestamp")
        given = _column(settings.timestamp)
        moment = given.try_cast("timestamp")
        columns.append(moment.alias("timestamp"))
        told = F.concat(
            F.lit(f"column {settings.timestamp} must be a time, got "), given.cast("string")
        )
        faults.append(F.when(given.isNotNull() & moment.isNull(), told))
    return rows.select(*columns, F.coalesce(*faults).alias(_FAULT))


def _fault_of(name: str, value: Column) -> Column:
    """Return why the value of a column cannot be part of a topic; null if it can."""
    empty = F.lit(f"column {name} is empty, and a part of the topic")
    wild = F.concat(F.lit(f"column {name} has a wildcard or U+0000, as no topic may: "), value)
    return F.when(value.isNull(), empty).when(value.rlike(_FORBIDDEN), wild)


def _looked_through(rows: DataFrame) -> dict[str, Any]:
    """Count the rows and the bad rows of a file, and return one of the reasons."""
    (found,) = rows.agg(
        F.count(F.lit(1)).alias("rows"),
        F.count(_FAULT).alias("bad"),
        F.first(_FAULT, ignorenulls=True).alias("first"),
    ).collect()
    return found.asDict()


def _column(name: str) -> Column:
    return F.col(f"`{name}`")


def _exactly(file: str) -> str:
    """Return the escaped path of a file URI: Spark expects path patterns."""
    return re.sub(r"([\[\]{}*?\\])", r"\\\1", unquote(file))


def shown(file: str) -> str:
    """Return the path of a file URI of Spark."""
    return unquote(re.sub(r"^file:/+", "/", file))


def template_parts(template: str, columns: Sequence[str]) -> list[tuple[bool, str]]:
    """Return the parts of a template as (is_column, text).

    Raises: UsageError.
    """
    parts: list[tuple[bool, str]] = []
    reached = 0
    for match in _PLACE.finditer(template):
        if match.start() > reached:
            parts.append((False, template[reached : match.start()]))
        _check_column(match[1], columns, f"template {template!r}")
        parts.append((True, match[1]))
        reached = match.end()
    if reached < len(template):
        parts.append((False, template[reached:]))
    literal = "".join(text for is_column, text in parts if not is_column)
    if not parts or set(literal) & set("{}+#"):
        raise UsageError(
            f"a template of topics must look like 'plant/{{site}}/{{sensor}}', got {template!r}"
        )
    return parts


def write_id(name: str, file: str) -> str:
    """Return the unique name of the write of a file."""
    return f"{name}-{blake2b(file.encode(), digest_size=12).hexdigest()}"


def _payload(rows: DataFrame, settings: ImportSettings, named: set[str]) -> Column:
    if settings.payload:
        _check_column(settings.payload, rows.columns, "--payload")
        return _column(settings.payload).cast("binary")
    left = [name for name in rows.columns if name not in named and name != settings.timestamp]
    return F.to_json(F.struct(*map(_column, left))) if left else F.lit("{}")


def _check_column(name: str, columns: Sequence[str], where: str) -> None:
    if name not in columns:
        raise UsageError(f"{where}: unknown column {name!r} (found: {', '.join(columns)})")
