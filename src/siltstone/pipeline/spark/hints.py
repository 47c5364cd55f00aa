"""Hints for a condition that reads all rows, where an option would read only some.

Spark 4.3 would return wrong rows of other queries if it passed conditions to a Python source. So
`where` cannot limit what is read from the store, but an option can.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame


class FullScanWarning(UserWarning):
    """A condition does not limit what is read from the store."""


def with_hints(rows: DataFrame, options: Mapping[str, str]) -> DataFrame:
    """Let `where` and `filter` of these rows warn if an option would read fewer rows.

    `options` has the option that replaces a condition on each column. Later conditions, which are
    put on the result, are not looked at.
    """
    filtered = rows.filter

    def hinted(condition: Any) -> DataFrame:
        text = str(condition)
        for column, option in options.items():
            if re.search(rf"\b{column}\b", text):
                warnings.warn(
                    f"a condition on {column} reads all rows that are not in the lake yet; "
                    f"{option} reads only those that it needs",
                    FullScanWarning,
                    stacklevel=2,
                )
        return filtered(condition)

    # Only these rows get other methods. The class has them for all rows.
    rows.__dict__.update(filter=hinted, where=hinted)
    return rows
