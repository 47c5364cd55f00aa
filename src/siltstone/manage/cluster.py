"""Verbs on the cluster that a running broker belongs to."""

from __future__ import annotations

from typing import Final, Literal

from siltstone.manage.verb import Document, Nothing, Request, RequiredRight, Verb, YesOrNo


class SiteChange(Request):
    """The new role of a site; "" names the site of the broker."""

    site: str = ""
    role: Literal["member", "draining", "leaving", "gone"]


class ShardMove(Request):
    """A replica that is replaced by another, or a site that shall lead, or both."""

    shard: str
    old: str = ""
    new: str = ""
    leader: str | None = None


class StandstillEnd(Request):
    """The next serial of each shard, as `cluster-stand-still` has answered."""

    serials: dict[str, int]


CLUSTER_VERBS: Final = (
    Verb(
        name="cluster-status",
        request=Nothing,
        response=Document,
        role=RequiredRight.READ,
        where="broker",
    ),
    Verb(
        name="cluster-site",
        request=SiteChange,
        response=Nothing,
        role=RequiredRight.MANAGE,
        where="broker",
    ),
    Verb(
        name="cluster-move",
        request=ShardMove,
        response=Nothing,
        role=RequiredRight.MANAGE,
        where="broker",
    ),
    Verb(
        name="cluster-stand-still",
        request=Nothing,
        response=Document,
        role=RequiredRight.MANAGE,
        where="broker",
    ),
    Verb(
        name="cluster-stood-still",
        request=StandstillEnd,
        response=YesOrNo,
        role=RequiredRight.MANAGE,
        where="broker",
    ),
)
