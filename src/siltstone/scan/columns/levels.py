"""Topics as lists of their words, for many rows of few topics.

If all topics of a frame have the same number of levels, the words of a row are adjacent bytes. They
are copied together, and only the end of each word is computed separately.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

# The fast way is limited to this number of rows.
ROWS_MAX: Final = 1 << 16


def level_lists(topics: pa.Array, numbers: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the words of each row's topic as lists of this type; numbers are indexes of topics."""
    split = pc.split_pattern(topics, "/")
    lengths = pc.min_max(pc.list_value_length(split)).as_py()
    if not 0 < len(numbers) <= ROWS_MAX or lengths["min"] != lengths["max"]:
        taken = split.take(numbers)
        return pa.ListArray.from_arrays(taken.offsets, taken.values, type=kind)
    levels: int = lengths["min"]
    words = split.values
    starts = _offsets(words)
    # The words of a topic, without the separators, are adjacent.
    texts = starts.take(split.offsets)
    joined = _texts(texts, words.buffers()[2]).take(numbers)
    first = texts.take(pc.list_parent_indices(split))
    within = pa.FixedSizeListArray.from_arrays(
        pc.subtract(starts.slice(0, len(words)), first), levels
    )
    # Add one row: the start of its first word is the end of the last word.
    places = within.take(pa.concat_arrays([numbers, numbers.slice(0, 1)]))
    begun = _offsets(joined).take(pc.list_parent_indices(places))
    offsets = pc.add(places.flatten(), begun).slice(0, len(numbers) * levels + 1)
    bounds = _multiples(levels).slice(0, len(numbers) + 1)
    return pa.ListArray.from_arrays(bounds, _texts(offsets, joined.buffers()[2]), type=kind)


@lru_cache(maxsize=16)
def _multiples(number: int) -> pa.Array:
    return pa.arange(0, number * ROWS_MAX + 1, number).cast(pa.int32())


def _offsets(texts: pa.Array) -> pa.Array:
    """Return the start of each text of an array, and the end of the last one."""
    buffers = [None, texts.buffers()[1]]
    return pa.Array.from_buffers(pa.int32(), len(texts) + 1, buffers, offset=texts.offset)


def _texts(offsets: pa.Array, data: pa.Buffer) -> pa.Array:
    return pa.StringArray.from_buffers(len(offsets) - 1, offsets.buffers()[1], data)
