from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from siltstone.errors import CorruptionError, DiskError, NotFoundError, SlabDroppedError
from siltstone.store.shard.retry_dropped import retry_when_dropped
from tests.support.builders import PATH

ERRORS = (NotFoundError("gone"), SlabDroppedError("gone"), CorruptionError("gone", path=PATH))


class Looker:
    """Looks at slabs whose manifest changes a number of times."""

    def __init__(self, *errors: Exception, changes: int) -> None:
        self._errors = list(errors)
        self._changes = changes
        self.looks = 0
        self._log = cast("Any", SimpleNamespace(manifest=0, refresh=self._refresh))

    def _refresh(self) -> None:
        if self._changes:
            self._changes -= 1
            self._log.manifest += 1

    @retry_when_dropped
    def look(self, answer: str, *, twice: bool = False) -> str:
        self.looks += 1
        if self._errors:
            raise self._errors.pop(0)
        return answer * 2 if twice else answer


def test_a_look_is_repeated_while_the_manifest_changes_under_it() -> None:
    looker = Looker(*ERRORS, changes=3)
    assert (looker.look("x", twice=True), looker.looks) == ("xx", 4)


@pytest.mark.parametrize("error", ERRORS)
def test_what_no_drop_explains_is_raised(error: Exception) -> None:
    looker = Looker(error, changes=0)
    with pytest.raises(type(error), match="gone"):
        looker.look("x")
    assert looker.looks == 1


def test_other_errors_are_raised_at_once() -> None:
    looker = Looker(DiskError(PATH, "read", "broken", errno=5), changes=3)
    with pytest.raises(DiskError):
        looker.look("x")
    assert looker.looks == 1
