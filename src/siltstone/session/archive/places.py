"""A scan over the positions of all sessions in the archive, which loads no session."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from siltstone.session.archive.codec import decode_progress, decode_session
from siltstone.session.archive.keys import SESSIONS_FILTER, SessionKeys
from siltstone.session.archive.rows import second_word
from siltstone.store.log.read.pieces import Row
from siltstone.store.slab.identity import DatabaseIdentity

PROGRESS_FILTER = "session/+/progress"

# Yields the rows of a filter in order, starting at a topic.
Walk = Callable[[str, str], Iterator[Row]]


class Page(NamedTuple):
    """Sessions that were found, and the client id to continue after; empty if there are no more."""

    client_ids: list[str]
    after: str


def sessions_before(
    walk: Walk,
    floors: Mapping[int, int],
    origin: DatabaseIdentity | None,
    *,
    after: str = "",
    limit: int,
) -> Page:
    """Return sessions whose position is before any of these serials, in order of client ids,
    starting behind the client id `after`. A session that was saved in another database counts as at
    the beginning.

    States are read before places. A session changes its database and its place in one commit, so a
    place is never compared with the wrong database.
    """
    keys = SessionKeys(after) if after else None
    states = walk(SESSIONS_FILTER, "" if keys is None else keys.state)
    state = next(states, None)
    places = _places(walk(PROGRESS_FILTER, "" if keys is None else keys.progress))
    word, position = next(places, _NO_PLACE)
    found: list[str] = []
    while state is not None:
        wanted = second_word(state)
        while word is not None and word < wanted:
            word, position = next(places, _NO_PLACE)
        session, _ = decode_session(state.value)
        is_known = word == wanted and (origin is None or origin.owns(session.identity))
        at = position if is_known else {}
        if session.client_id != after and any(
            at.get(shard, 0) < serial for shard, serial in floors.items()
        ):
            found.append(session.client_id)
            if len(found) == limit:
                return Page(found, session.client_id)
        state = next(states, None)
    return Page(found, "")


def _places(rows: Iterator[Row]) -> Iterator[tuple[str | None, dict[int, int]]]:
    for row in rows:
        yield second_word(row), dict(decode_progress(row.value).position.serials)


_NO_PLACE: tuple[None, dict[int, int]] = (None, {})
