"""Verbs on sessions, share groups, retained messages, snapshots and the clock.

A running broker has these in memory, so it runs them with functions of its own. The functions of
this module change saved sessions and groups while no broker runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, ConfigDict

from siltstone.errors import NotFoundError, UsageError
from siltstone.fs.paths import COMMITS
from siltstone.manage.verb import (
    Count,
    Document,
    Host,
    Nothing,
    Request,
    RequiredRight,
    Text,
    Verb,
    Where,
    YesOrNo,
)
from siltstone.session.archive.keys import group_parts
from siltstone.session.archive.move import find_place, move_group, move_session
from siltstone.session.archive.store import ARCHIVE_NAME, ARCHIVE_SETTINGS, SessionArchive


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
    # The database with the messages; a running broker knows its own.
    database: str = "messages"


class NameGroup(EarlierRequest):
    """A share group, as $share/NAME/FILTER."""

    group: str


class MoveGroup(EarlierRequest):
    """A share group and its new position: a time is in microseconds."""

    group: str
    to: Place
    # The database with the messages; a running broker knows its own.
    database: str = "messages"


class NameTopics(EarlierRequest):
    """The topics of a filter."""

    filter: str


class NameClock(EarlierRequest):
    """The database whose times begin again."""

    database: str


def drop_session(host: Host, request: NameSession) -> YesOrNo:
    """Delete a saved session; return whether there was one. Raises: UsageError."""
    owned = _archive(host).take(request.client_id)
    if owned is not None and owned.state.will is not None:
        # The session expires, and its will is published, when the broker starts.
        owned.put_meta(expiry_seconds=0, away_since_us=0, connected=False)
        owned.save()
    elif owned is not None:
        owned.drop()
    return YesOrNo(owned is not None)


def move_saved_session(host: Host, request: MoveSession) -> YesOrNo:
    """Move a saved session to another position. Raises: NotFoundError, UsageError."""
    owned = _archive(host, request.database).take(request.client_id)
    if owned is None:
        raise no_session(request.client_id)
    source = host.store.database(request.database).feed_source()
    move_session(owned, find_place(source, request.to))
    owned.save()
    return YesOrNo(root=True)


def drop_saved_group(host: Host, request: NameGroup) -> YesOrNo:
    """Delete a saved share group. Raises: NotFoundError, UsageError."""
    parts = group_parts(request.group)
    owned = _archive(host).take_group(*parts)
    if owned is None:
        raise _not_stored(request.group)
    owned.drop()
    return YesOrNo(root=True)


def move_saved_group(host: Host, request: MoveGroup) -> YesOrNo:
    """Move a saved share group to another position. Raises: NotFoundError, UsageError."""
    parts = group_parts(request.group)
    owned = _archive(host, request.database).take_group(*parts)
    if owned is None:
        raise _not_stored(request.group)
    source = host.store.database(request.database).feed_source()
    move_group(owned, find_place(source, request.to))
    owned.save()
    return YesOrNo(root=True)


def no_session(client_id: str) -> NotFoundError:
    """Return the error for a client id without a durable session."""
    return NotFoundError(
        f"client {client_id!r} has no durable session; 'siltstone sessions list' shows all"
    )


def no_group(group: str) -> NotFoundError:
    """Return the error for a share group that does not exist."""
    return NotFoundError(f"share group {group!r} does not exist; 'siltstone groups list' shows all")


def _archive(host: Host, database: str = "") -> SessionArchive:
    """Open the archive of a store without a broker. Raises: UsageError."""
    store = host.store
    # A broker with persistence = "snapshot" has no archive, and must not get one.
    if COMMITS not in store.keyvalue_places():
        raise UsageError(f"{store.path} has no durable sessions")
    keyvalue = store.keyvalue(ARCHIVE_NAME, ARCHIVE_SETTINGS)
    return SessionArchive(
        keyvalue, store.clock, store.database(database).origin if database else None
    )


def _not_stored(group: str) -> NotFoundError:
    return NotFoundError(
        f"share group {group!r} is not stored: a group without durable sessions exists only in the "
        f"memory of the running broker"
    )


def _changing(
    name: str, request: type[Request], run: Callable[[Host, Any], YesOrNo] | None
) -> Verb:
    where: Where = "broker" if run is None else "either"
    return Verb(
        name=name,
        request=request,
        response=YesOrNo,
        role=RequiredRight.MANAGE,
        where=where,
        run=run,
    )


SESSION_VERBS: Final = (
    _changing("kick", NameSession, None),
    _changing("drop", NameSession, drop_session),
    _changing("move", MoveSession, move_saved_session),
    Verb(
        name="groups", request=Nothing, response=Document, role=RequiredRight.READ, where="broker"
    ),
    _changing("drop-group", NameGroup, drop_saved_group),
    _changing("move-group", MoveGroup, move_saved_group),
    Verb(
        name="count-retained",
        request=NameTopics,
        response=Count,
        role=RequiredRight.READ,
        where="either",
    ),
    Verb(
        name="clear-retained",
        request=NameTopics,
        response=Count,
        role=RequiredRight.MANAGE,
        where="either",
    ),
    Verb(
        name="snapshot", request=Nothing, response=Text, role=RequiredRight.MANAGE, where="either"
    ),
    Verb(
        name="clock-status",
        request=Nothing,
        response=Document,
        role=RequiredRight.READ,
        where="either",
    ),
    Verb(
        name="clock-confirm",
        request=Nothing,
        response=Document,
        role=RequiredRight.MANAGE,
        where="either",
    ),
    Verb(
        name="clock-reset",
        request=NameClock,
        response=Count,
        role=RequiredRight.MANAGE,
        where="either",
    ),
)
