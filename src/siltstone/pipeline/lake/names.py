"""Names of tables and columns, made from the words of topics and payloads.

A name has letters of any case, digits and `_`, and begins with a letter. Names must differ in more
than case: Spark and Delta ignore case.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import Final, Literal

NAME_MAX: Final = 80
DEAD_LETTER: Final = "dead_letter"
OTHER: Final = "other"
# The columns that every table of the lake has, whatever its structure.
ROW_COLUMNS: Final = (
    "topic",
    "timestamp",
    "publisher",
    "qos",
    "retain",
    "properties",
    "payload",
    "shard",
    "generation",
    "stream",
    "serial",
)
# The columns of its files. They include the levels, so that a read need not split topics.
FILE_COLUMNS: Final = (*ROW_COLUMNS, "levels")
PARTITION_COLUMNS: Final = ("date", "hour")
# The columns of every rollup table.
WINDOW_COLUMNS: Final = ("window_start", "window_end", "rows")
Content = Literal["rows", "windows", "other"]
CONTENTS: Final[Mapping[Content, str]] = {
    "rows": "rows of topics",
    "windows": "windows of a rollup",
    "other": "data of another program",
}
RESERVED_COLUMNS: Final = (*FILE_COLUMNS, *PARTITION_COLUMNS)
_STRANGE: Final = re.compile(r"[^A-Za-z0-9]+")


def plain_name(word: str, otherwise: str) -> str:
    """Return a word as a name; `otherwise` if it has no letter or digit."""
    name = _STRANGE.sub("_", word).strip("_")[:NAME_MAX].rstrip("_")
    if not name:
        return otherwise
    return name if name[0].isalpha() else f"n{name}"


def free_name(wanted: str, taken: Iterable[str]) -> str:
    """Return the first of name, name_2, name_3, … that is not taken."""
    known = {name.lower() for name in taken}
    names = (wanted if number == 1 else f"{wanted}_{number}" for number in count(1))
    return next(name for name in names if name.lower() not in known)


def table_name(levels: Sequence[str], taken: Iterable[str]) -> str:
    """Return the table name of a structure, from its words: plant/+/oven/+ is plant_oven."""
    words = [plain_name(level, "") for level in levels if level not in ("+", "#")]
    joined = "_".join(word for word in words if word).lower()[:NAME_MAX].rstrip("_")
    return free_name(joined or f"levels_{len(levels)}", [*taken, DEAD_LETTER, OTHER])


def level_columns(levels: Sequence[str]) -> list[str]:
    """Return the column names of the varying levels, each from the word before it.

    metrics/+/cpu/socket/+/core/+ has metrics, socket and core. A level without a word before it is
    named after its place. The second level with the same word is word_2.
    """
    names: list[str] = []
    word = ""
    for place, level in enumerate(levels, 1):
        if level != "+":
            word = level
            continue
        wanted = plain_name(word, f"level_{place}")
        names.append(free_name(wanted, [*RESERVED_COLUMNS, *names]))
    return names


def content_of(columns: Iterable[str]) -> Content:
    """Return the content of a table with these columns: topic rows, rollup windows, or other.

    A payload may have a field window_start, but no rollup has a column serial.
    """
    known = {name.lower() for name in columns}
    if known.issuperset(("topic", "serial")):
        return "rows"
    return "windows" if known.issuperset(WINDOW_COLUMNS) else "other"


def field_column(path: Sequence[str], taken: Iterable[str]) -> str:
    """Return the column name of a payload field; payload_name if a topic column has the name."""
    known = list(taken)
    wanted = plain_name("_".join(path), "field")
    if wanted.lower() in {name.lower() for name in known}:
        wanted = f"payload_{wanted}"
    return free_name(wanted, known)
