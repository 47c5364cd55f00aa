"""Files of any format that Spark reads, to topics.

A topic is made from columns by a template, `plant/{site}/{sensor}`; the payload is one column, or
the other columns as JSON. Files go one after the other, each as a write with a name of its own, so
that an import that is done again stores no row twice and goes on where it was cut off.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from siltstone.errors import UsageError

_PLACE: Final = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportSettings:
    """What to read, and what becomes of it; `target` are the sink's options, path or url."""

    source: str
    topic: str
    target: Mapping[str, str]
    format: str = "json"
    options: Mapping[str, str] = field(default_factory=dict)
    payload: str = ""
    timestamp: str = ""
    name: str = "import"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportStep:
    """A file that is stored, its rows, and how many files wait."""

    file: str
    rows: int
    waiting: int


def import_files(
    spark: SparkSession,
    settings: ImportSettings,
    progress: Callable[[ImportStep], None] = lambda _: None,
) -> list[ImportStep]:
    """Import every file of a source. Raises: UsageError."""
    try:
        reader = spark.read.format(settings.format).options(**settings.options)
        source = reader.load(settings.source)
        files = sorted(source.inputFiles())
        messages(source, settings)
    except AnalysisException as exc:
        raise UsageError(_sentence(exc)) from exc
    steps: list[ImportStep] = []
    for number, file in enumerate(files, 1):
        # The schema of all files holds for each: one alone might look different.
        rows = messages(reader.schema(source.schema).load(file), settings)
        count = rows.count()
        write = rows.write.format("siltstone").mode("append").options(**settings.target)
        write.option("writeId", write_id(settings.name, file)).save()
        steps.append(ImportStep(file=file, rows=count, waiting=len(files) - number))
        progress(steps[-1])
    return steps


def messages(rows: DataFrame, settings: ImportSettings) -> DataFrame:
    """Return rows as the sink takes them. Raises: UsageError."""
    parts = template_parts(settings.topic, rows.columns)
    named = {name for is_column, name in parts if is_column}
    topic = F.concat(
        *(
            F.col(f"`{name}`").cast("string") if is_column else F.lit(name)
            for is_column, name in parts
        )
    )
    columns = [topic.alias("topic"), _payload(rows, settings, named).alias("payload")]
    if settings.timestamp:
        _check_column(settings.timestamp, rows.columns, "--timestamp")
        moment = F.col(f"`{settings.timestamp}`").cast("timestamp")
        columns.append(moment.alias("timestamp"))
    return rows.select(*columns)


def template_parts(template: str, columns: Sequence[str]) -> list[tuple[bool, str]]:
    """Return a template as literal text and names of columns, the latter marked.

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
        raise UsageError(f"no template of topics, as in 'plant/{{site}}/{{sensor}}': {template!r}")
    return parts


def write_id(name: str, file: str) -> str:
    """Return by what name a file is written, once."""
    return f"{name}-{blake2b(file.encode(), digest_size=12).hexdigest()}"


def _payload(rows: DataFrame, settings: ImportSettings, named: set[str]) -> Column:
    if settings.payload:
        _check_column(settings.payload, rows.columns, "--payload")
        return F.col(f"`{settings.payload}`").cast("binary")
    left = [name for name in rows.columns if name not in named and name != settings.timestamp]
    return F.to_json(F.struct(*(F.col(f"`{name}`") for name in left))) if left else F.lit("{}")


def _check_column(name: str, columns: Sequence[str], where: str) -> None:
    if name not in columns:
        raise UsageError(f"{where} names no column: {name!r}; there are {', '.join(columns)}")


def _sentence(exc: AnalysisException) -> str:
    return str(exc).partition("\n")[0].partition(";")[0]
