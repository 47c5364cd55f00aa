"""Rows for tests of frames: few topics with several structures, and all columns in use."""

from __future__ import annotations

from hypothesis import strategies as st

from siltstone.store.log.read.pieces import Row

TOPICS = ["a", "a/b", "a/c", "a/b/1", "a/b/2", "b/1/x", "b/2/x", "b/3/y", "ä/ß", "/", "a//b"]
FILTERS = ["#", "a/+", "a/#", "b/+/x", "b/2/+", "+", "a/b/1", "z/#", "+/+/x"]


def a_row() -> st.SearchStrategy[Row]:
    return st.tuples(
        st.sampled_from(TOPICS),
        st.binary(max_size=20),
        st.sampled_from(["", "p", "ö"]),
        st.integers(0, 2),
        st.booleans(),
        st.sampled_from([b"", b"", b"&\0\1k\0\1v"]),
    ).map(lambda fields: Row(*fields))
