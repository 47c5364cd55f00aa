"""Verbs on sessions, share groups, retained messages, snapshots and the clock.

A running broker has these in memory, so it runs them with functions of its own.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, ConfigDict

from siltstone.manage.verb import Count, Document, Nothing, Request, Role, Text, Verb, YesOrNo


def _checked_place(to: Any) -> Any:
    if to in ("earliest", "latest") or (isinstance(to, int) and not isinstance(to, bool)):
        return to
    raise ValueError(f"to must be earliest, latest or a time, got {to!r}")


class EarlierRequest(Request):
    """A request that brokers of version 0.1.0 had: they ignored unknown fields."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)


Place = Annotated[Literal["earliest", "latest"] | int, BeforeValidator(_checked_place)]


class NameSession(EarlierRequest):
    """A session, by the client id."""

    client_id: str


class MoveSession(EarlierRequest):
    """A session and its new position: a time is in microseconds."""

    client_id: str
    to: Place


class NameGroup(EarlierRequest):
    """A share group, as $share/NAME/FILTER."""

    group: str


class MoveGroup(EarlierRequest):
    """A share group and its new position: a time is in microseconds."""

    group: str
    to: Place


class NameTopics(EarlierRequest):
    """The topics of a filter."""

    filter: str


class NameClock(EarlierRequest):
    """The database whose times begin again."""

    database: str


SESSION_VERBS: Final = (
    Verb(name="kick", request=NameSession, response=YesOrNo, role=Role.MANAGE, where="broker"),
    Verb(name="drop", request=NameSession, response=YesOrNo, role=Role.MANAGE, where="either"),
    Verb(name="move", request=MoveSession, response=YesOrNo, role=Role.MANAGE, where="either"),
    Verb(name="groups", request=Nothing, response=Document, role=Role.READ, where="broker"),
    Verb(name="drop-group", request=NameGroup, response=YesOrNo, role=Role.MANAGE, where="either"),
    Verb(name="move-group", request=MoveGroup, response=YesOrNo, role=Role.MANAGE, where="either"),
    Verb(name="count-retained", request=NameTopics, response=Count, role=Role.READ, where="either"),
    Verb(
        name="clear-retained", request=NameTopics, response=Count, role=Role.MANAGE, where="either"
    ),
    Verb(name="snapshot", request=Nothing, response=Text, role=Role.MANAGE, where="either"),
    Verb(name="clock-status", request=Nothing, response=Document, role=Role.READ, where="either"),
    Verb(
        name="clock-confirm", request=Nothing, response=Document, role=Role.MANAGE, where="either"
    ),
    Verb(name="clock-reset", request=NameClock, response=Count, role=Role.MANAGE, where="either"),
)
