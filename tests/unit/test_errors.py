from __future__ import annotations

from siltstone.errors import (
    ConflictError,
    FencedError,
    PreconditionError,
    RetryError,
    SiltstoneError,
    Unmet,
)

ABSENT = Unmet(topic="a", time_us=1, present=True, expected=b"x", found=None)
OTHER = Unmet(topic="b", time_us=2, present=True, expected=b"secret", found=b"other secret")
PRESENT = Unmet(topic="c", time_us=3, present=False, expected=None, found=b"secret")


def test_a_conflict_may_be_tried_again_and_an_unmet_requirement_may_not() -> None:
    assert issubclass(ConflictError, RetryError)
    assert not issubclass(PreconditionError, RetryError)
    assert issubclass(PreconditionError, SiltstoneError)
    assert issubclass(FencedError, PreconditionError)


def test_a_precondition_error_has_what_was_found_and_says_it_without_the_values() -> None:
    error = PreconditionError((ABSENT, OTHER, PRESENT))
    assert error.unmet == (ABSENT, OTHER, PRESENT)
    assert str(error) == (
        "the row does not exist, but must exist: topic='a' time_us=1; "
        "the row has another value than required: topic='b' time_us=2; "
        "the row exists, but must not exist: topic='c' time_us=3"
    )
