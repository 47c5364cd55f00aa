from __future__ import annotations

from pathlib import PurePath

import pytest

from siltstone.errors import UsageError
from siltstone.spool.arguments import function_given, pairs_given, path_given, require_kind


def test_what_is_of_its_kind_passes() -> None:
    require_kind("n", 5, int, "a whole number")
    function_given(print)
    assert list(pairs_given([(b"a", None), [b"b", "m"]])) == [(b"a", None), (b"b", "m")]
    assert path_given(PurePath("/a/../b")) == path_given("/b") == PurePath("/b")


@pytest.mark.parametrize(
    ("items", "message"),
    [
        (5, "items must be pairs of a source and metadata: type=int"),
        ([b"ab"], "an item must be a source and its metadata: type=bytes"),
        ([(b"a",)], "an item must be a source and its metadata: type=tuple"),
        ([(b"a", b"m")], "metadata must be text, or None: type=bytes"),
    ],
)
def test_what_is_no_pair_is_refused(items: object, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        list(pairs_given(items))
    assert str(caught.value) == message


def test_paths_functions_and_kinds_are_told_apart() -> None:
    with pytest.raises(UsageError, match=r"^a path must be text or a path: type=bytes$"):
        path_given(b"/a")
    with pytest.raises(
        UsageError, match=r"^a path must not have the character U\+0000: path='/a.x00'$"
    ):
        path_given("/a\0")
    with pytest.raises(UsageError, match=r"^a function must be callable: type=int$"):
        function_given(5)
    with pytest.raises(UsageError, match=r"^n must be a whole number: type=str$"):
        require_kind("n", "5", int, "a whole number")
