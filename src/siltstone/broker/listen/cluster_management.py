"""The verbs of a broker that belongs to a cluster."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from siltstone.broker.control.socket import Deed
from siltstone.errors import UsageError
from siltstone.manage.cluster import ShardMove, SiteChange, StandstillEnd
from siltstone.manage.verb import Nothing
from siltstone.store.writer.replication.sites.planning import SiteRole

if TYPE_CHECKING:
    from siltstone.cluster.site import ClusterSite


def cluster_deeds(cluster: ClusterSite | None) -> dict[str, Deed]:
    """Return the functions for the verbs of a cluster."""

    def site() -> ClusterSite:
        if cluster is None:
            raise UsageError(
                "this broker does not belong to a cluster; start it with --cluster NAME"
            )
        return cluster

    async def status(_request: object) -> object:
        return await asyncio.to_thread(site().status)

    async def change_site(request: SiteChange) -> object:
        await asyncio.to_thread(site().change_role, request.site, SiteRole(request.role))
        return Nothing()

    async def move(request: ShardMove) -> object:
        if request.old or request.new:
            await asyncio.to_thread(site().move_shard, request.shard, request.old, request.new)
        if request.leader is not None:
            await asyncio.to_thread(site().prefer_leader, request.shard, request.leader)
        return Nothing()

    async def stand_still(_request: object) -> object:
        return {} if cluster is None else await asyncio.to_thread(cluster.stand_still)

    async def stood_still(request: StandstillEnd) -> object:
        if cluster is None:
            return not request.serials
        return await asyncio.to_thread(cluster.stood_still, request.serials)

    return {
        "cluster-status": status,
        "cluster-site": change_site,
        "cluster-move": move,
        "cluster-stand-still": stand_still,
        "cluster-stood-still": stood_still,
    }
