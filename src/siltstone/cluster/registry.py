"""The facts on which all sites agree: a bucket of JetStream, changed by compare-and-set only.

    cluster         the name of the cluster
    place.<shard>   the sites of a shard, and the sequence below which its log is trimmed
    db.<database>   how a replicated database was created: salt, time, settings, and a nonce for the
                    log of each shard; `state` is founding until all streams exist, then ready.
                    While it has `by`, only that site has the rows, and no other one opens it
    kv.<database>   the same for a key-value database
    dropped.<identity>  the name and shards of a database that was dropped; `state` is dropping
                    until its entry, its placements and its streams are gone, then dropped. It
                    stays, so that a site that was away deletes its copy
    site.<site>     the role of a site, and its zone

Streams are created only while a database is being founded. A stream that is missing later is lost,
and is never replaced by an empty one.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from nats.errors import Error as NatsError
from nats.js.api import KeyValueConfig
from nats.js.errors import (
    BucketNotFoundError,
    KeyNotFoundError,
    KeyWrongLastSequenceError,
)
from nats.js.kv import KeyValue

from siltstone.clock import Clock
from siltstone.cluster.shared_log import (
    NatsConnection,
    ask,
    found_stream,
    remove_stream,
    stream_of,
    trim_genesis,
)
from siltstone.errors import RetryError, SiltstoneError, UsageError
from siltstone.store.shard.replicated.port import (
    KEYVALUE_PREFIX,
    Founding,
    cluster_name,
    identity_of_map,
)
from siltstone.store.slab.manifest import Manifest
from siltstone.store.slab.settings import DatabaseSettings
from siltstone.store.tx.settings import KeyValueSettings
from siltstone.store.writer.replication.messages import DIGEST_BYTES, LogIdentity
from siltstone.store.writer.replication.sites.membership import ShardSites
from siltstone.store.writer.replication.sites.planning import Site, SiteRole

BUCKET: Final = "siltstone"
_HISTORY: Final = 1
# Before the servers have found each other, none of them answers, so it is better to ask again soon.
_SECONDS: Final = 2.0
AnySettings = DatabaseSettings | KeyValueSettings
AnyFounding = Founding[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """A replicated database, as the registry has it."""

    name: str
    founding: AnyFounding
    nonces: tuple[bytes, ...]
    is_ready: bool
    revision: int
    by: str = ""

    @property
    def identity(self) -> bytes:
        """The identity of the database."""
        founding = self.founding
        if isinstance(founding.settings, KeyValueSettings):
            return identity_of_map(self.name, founding)
        manifest = Manifest(
            database=self.name, salt=founding.salt, settings=founding.settings, slabs=()
        )
        return bytes.fromhex(manifest.identity.text)

    def encode(self, *, is_ready: bool) -> bytes:
        """Return the bytes of the entry."""
        values: dict[str, Any] = {
            "salt": self.founding.salt,
            "created_us": self.founding.created_us,
            "settings": self.founding.settings.to_json(),
            "nonces": [nonce.hex() for nonce in self.nonces],
            "state": "ready" if is_ready else "founding",
        }
        if self.by and not is_ready:
            values["by"] = self.by
        return json.dumps(values).encode()

    @classmethod
    def decode(cls, name: str, data: bytes, revision: int) -> Registered:
        """Return the database that an entry describes."""
        values: dict[str, Any] = json.loads(data)
        is_map = name.startswith(KEYVALUE_PREFIX)
        kind = KeyValueSettings if is_map else DatabaseSettings
        return cls(
            name=name,
            founding=Founding(
                salt=values["salt"],
                created_us=values["created_us"],
                settings=kind.from_json(values["settings"]),
            ),
            nonces=tuple(bytes.fromhex(nonce) for nonce in values["nonces"]),
            is_ready=values["state"] == "ready",
            revision=revision,
            by=values.get("by", ""),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppedDatabase:
    """A replicated database that was dropped in the whole cluster."""

    name: str
    identity: bytes
    shards: int
    # Whether only the copies of sites that were away are left.
    is_cleared: bool
    revision: int

    def encode(self, *, is_cleared: bool) -> bytes:
        """Return the bytes of the entry."""
        state = "dropped" if is_cleared else "dropping"
        return json.dumps({"name": self.name, "shards": self.shards, "state": state}).encode()

    @classmethod
    def decode(cls, identity: bytes, data: bytes, revision: int) -> DroppedDatabase:
        """Return the database that an entry describes."""
        values = json.loads(data)
        return cls(
            name=values["name"],
            identity=identity,
            shards=values["shards"],
            is_cleared=values["state"] == "dropped",
            revision=revision,
        )


class ClusterRegistry:
    """The bucket. On the loop of the site."""

    def __init__(
        self, connection: NatsConnection, clock: Clock, *, replicas: int, epoch: int
    ) -> None:
        self._connection = connection
        self._clock = clock
        self._epoch = epoch
        self._replicas = replicas
        self._bucket: KeyValue | None = None

    async def open(self, cluster: str) -> None:
        """Find the bucket, or create it.

        Raises: NatsError, ApiError; UsageError if it belongs to another cluster.
        """
        stream = self._connection.client.jetstream(timeout=_SECONDS)
        try:
            self._bucket = await stream.key_value(BUCKET)
        except BucketNotFoundError:
            self._bucket = await stream.create_key_value(
                KeyValueConfig(bucket=BUCKET, history=_HISTORY, replicas=self._replicas)
            )

        await self._claim(cluster)

    async def _claim(self, cluster: str) -> None:
        """Check that these servers, or this account of them, are used by one cluster only."""
        try:
            await self.bucket.create("cluster", cluster.encode())
        except KeyWrongLastSequenceError:
            found = (await self.bucket.get("cluster")).value or b""
            if found != cluster.encode():
                raise UsageError(
                    f"these NATS servers are used by the cluster {found.decode()!r}: give the "
                    f"cluster {cluster!r} an account of its own"
                ) from None

    @property
    def bucket(self) -> KeyValue:
        """The open bucket."""
        assert self._bucket is not None, "the registry is open"
        return self._bucket

    async def databases(self) -> list[str]:
        """Return the names of all databases. Raises: NatsError, ApiError."""
        maps = await self._names("kv")
        return await self._names("db") + [cluster_name(name) for name in maps]

    async def _names(self, kind: str) -> list[str]:
        """Return the names of all entries of a kind.

        The keys of the bucket are the subjects of its stream. `KeyValue.keys` would create a
        consumer, which all servers sync and which stays for some seconds: sites that ask all the
        time fill the servers with consumers, until they refuse more.
        """
        prefix = f"$KV.{BUCKET}.{kind}."
        request = {"subjects_filter": f"{prefix}>"}
        info = await ask(self._connection.client, f"STREAM.INFO.KV_{BUCKET}", request)
        return sorted(key.removeprefix(prefix) for key in info["state"].get("subjects") or ())

    async def database(self, name: str) -> Registered | None:
        """Return a database; None if there is none of this name. Raises: NatsError."""
        try:
            entry = await self.bucket.get(_entry_of(name))
        except KeyNotFoundError:
            return None
        assert entry.value is not None
        assert entry.revision is not None
        return Registered.decode(name, entry.value, entry.revision)

    async def found(self, name: str, settings: AnySettings) -> Registered:
        """Create a database, or finish what another site began; return it when it is ready.

        Raises: NatsError, ApiError.
        """
        known = await self.database(name)
        if known is None:
            mine = Registered(
                name=name,
                founding=Founding(
                    salt=secrets.randbits(63),
                    created_us=self._clock.now_us(),
                    settings=settings,
                ),
                nonces=tuple(secrets.token_bytes(DIGEST_BYTES) for _ in range(settings.shards)),
                is_ready=False,
                revision=0,
            )
            try:
                await self.bucket.create(_entry_of(name), mine.encode(is_ready=False))
            except KeyWrongLastSequenceError:
                # Another site was first.
                await asyncio.sleep(0)
            known = await self.database(name)
            assert known is not None
        if known.by:
            raise RetryError(
                f"site {known.by} begins the logs of {name}: wait until it has finished"
            )
        if known.identity in await self.dropped():
            await self.clear(await self.dropped_database(known.identity))
            raise RetryError(f"the former database {name} is being dropped: wait until it is gone")
        if not known.is_ready:
            await self._found_streams(known)
            await self.finish(known)
        return known

    async def found_from_files(
        self, name: str, founding: Founding[DatabaseSettings], site: str
    ) -> Registered:
        """Create the logs of a database whose rows only this site has; `finish` makes it ready.

        Raises: NatsError, ApiError; UsageError if there is another database of this name.
        """
        mine = Registered(
            name=name,
            founding=founding,
            nonces=tuple(
                secrets.token_bytes(DIGEST_BYTES) for _ in range(founding.settings.shards)
            ),
            is_ready=False,
            revision=0,
            by=site,
        )
        # It may be there already, from a start that was interrupted.
        with suppress(KeyWrongLastSequenceError):
            await self.bucket.create(_entry_of(name), mine.encode(is_ready=False))
        known = await self.database(name)
        if known is None or known.by != site or known.identity != mine.identity:
            raise UsageError(
                f"the cluster has another database {name!r} already: see 'siltstone cluster "
                f"import-local --help'"
            )
        await self._found_streams(known)
        for identity, nonce in self._logs(known):
            await trim_genesis(self._connection.client, identity, nonce)
        return known

    async def finish(self, known: Registered) -> None:
        """Let all sites open a database. Raises: NatsError."""
        # If another site was faster, it has done the same.
        with suppress(KeyWrongLastSequenceError):
            await self.bucket.update(
                _entry_of(known.name), known.encode(is_ready=True), known.revision
            )

    async def drop(self, known: Registered) -> None:
        """Decide that a database is dropped; `clear` does the rest. Raises: NatsError."""
        mine = DroppedDatabase(
            name=known.name,
            identity=known.identity,
            shards=len(known.nonces),
            is_cleared=False,
            revision=0,
        )
        # Another site may drop the database at the same time.
        with suppress(KeyWrongLastSequenceError):
            await self.bucket.create(
                _entry_of_dropped(mine.identity), mine.encode(is_cleared=False)
            )

    async def dropped(self) -> frozenset[bytes]:
        """Return the identities of all databases that were dropped. Raises: NatsError, ApiError."""
        return frozenset(map(bytes.fromhex, await self._names("dropped")))

    async def dropped_database(self, identity: bytes) -> DroppedDatabase:
        """Return a database that was dropped. Raises: NatsError."""
        entry = await self.bucket.get(_entry_of_dropped(identity))
        assert entry.value is not None
        return DroppedDatabase.decode(identity, entry.value, entry.revision or 0)

    async def clear(self, dropped: DroppedDatabase) -> None:
        """Remove a dropped database from the cluster: its entry, so that its name is free, its logs
        and their placements. The call may be repeated, also by several sites.

        Raises: NatsError, ApiError.
        """
        client = self._connection.client
        known = await self.database(dropped.name)
        if known is not None and known.identity == dropped.identity:
            # A later entry of this name belongs to another database, and stays.
            await self._purge(_entry_of(dropped.name), below=known.revision + 1)
        for shard in range(dropped.shards):
            identity = LogIdentity(database=dropped.identity, shard=shard, epoch=self._epoch)
            await remove_stream(client, identity)
            await self._purge(f"place.{stream_of(identity)}", below=0)
        with suppress(KeyWrongLastSequenceError):
            await self.bucket.update(
                _entry_of_dropped(dropped.identity),
                dropped.encode(is_cleared=True),
                dropped.revision,
            )

    async def _purge(self, key: str, *, below: int) -> None:
        """Remove the entries of a key before a revision, all for 0. No marker is left behind."""
        request: dict[str, Any] = {"filter": f"$KV.{BUCKET}.{key}"}
        if below:
            request["seq"] = below
        await ask(self._connection.client, f"STREAM.PURGE.KV_{BUCKET}", request)

    async def placement(self, key: str) -> tuple[ShardSites | None, int]:
        """Return the placement of a shard, and its revision for `place`. Raises: NatsError."""
        try:
            entry = await self.bucket.get(f"place.{key}")
        except KeyNotFoundError:
            return None, 0
        assert entry.value is not None
        return decode_placement(entry.value), entry.revision or 0

    async def placed(self) -> frozenset[str]:
        """Return the sites that have a replica of any shard, or shall have one.

        Raises: NatsError, ApiError.
        """
        found: set[str] = set()
        for key in await self._names("place"):
            placement, _ = await self.placement(key)
            if placement is not None:
                found |= placement.replicas | placement.wanted
        return frozenset(found)

    async def place(self, key: str, placement: ShardSites, revision: int) -> bool:
        """Replace the placement of a shard; return False if another site was faster.

        Raises: NatsError.
        """
        try:
            await self.bucket.update(f"place.{key}", encode_placement(placement), revision)
        except KeyWrongLastSequenceError:
            return False
        return True

    async def sites(self) -> dict[str, Site]:
        """Return all sites by name. Raises: NatsError, ApiError."""
        found = {name: await self._site(name) for name in await self._names("site")}
        return {name: site for name, (site, _) in found.items() if site is not None}

    async def change_site(self, name: str, change: Callable[[Site | None], Site | None]) -> bool:
        """Change the entry of a site until no other site was faster; return whether it was changed.

        `change` returns the new entry, None to leave the old one. Raises: NatsError.
        """
        while True:
            before, revision = await self._site(name)
            after = change(before)
            if after is None or after == before:
                return False
            try:
                await self.bucket.update(f"site.{name}", encode_site(after), revision)
            except KeyWrongLastSequenceError:
                continue
            return True

    async def _site(self, name: str) -> tuple[Site | None, int]:
        try:
            entry = await self.bucket.get(f"site.{name}")
        except KeyNotFoundError:
            return None, 0
        assert entry.value is not None
        return decode_site(entry.value), entry.revision or 0

    async def _found_streams(self, known: Registered) -> None:
        for identity, nonce in self._logs(known):
            await found_stream(
                self._connection.client,
                identity,
                nonce,
                replicas=self._replicas,
                title=f"{known.name}/{identity.shard}",
            )

    def _logs(self, known: Registered) -> list[tuple[LogIdentity, bytes]]:
        """Return the identities and nonces of the logs of a database."""
        return [
            (LogIdentity(database=known.identity, shard=shard, epoch=self._epoch), nonce)
            for shard, nonce in enumerate(known.nonces)
        ]


def _entry_of(name: str) -> str:
    """Return the key of a database. A site of an earlier version does not read those of maps."""
    if name.startswith(KEYVALUE_PREFIX):
        return f"kv.{name.removeprefix(KEYVALUE_PREFIX)}"
    return f"db.{name}"


def _entry_of_dropped(identity: bytes) -> str:
    return f"dropped.{identity.hex()}"


def encode_placement(placement: ShardSites) -> bytes:
    """Return the bytes of an entry of the registry."""
    values = {
        "replicas": sorted(placement.replicas),
        "insync": sorted(placement.insync),
        "trim": placement.trim,
        "wanted": sorted(placement.wanted),
        "preferred": placement.preferred,
    }
    return json.dumps(values).encode()


def decode_placement(data: bytes) -> ShardSites:
    """Return the placement that an entry describes."""
    values = json.loads(data)
    return ShardSites(
        replicas=frozenset(values["replicas"]),
        insync=frozenset(values["insync"]),
        trim=values["trim"],
        wanted=frozenset(values.get("wanted", ())),
        preferred=values.get("preferred", ""),
    )


def encode_site(site: Site) -> bytes:
    """Return the bytes of an entry of the registry."""
    values = {"role": site.role.value, "zone": site.zone, "producers": site.producers.hex()}
    return json.dumps(values).encode()


def decode_site(data: bytes) -> Site:
    """Return the site that an entry describes."""
    values = json.loads(data)
    return Site(
        role=SiteRole(values["role"]),
        zone=values["zone"],
        producers=bytes.fromhex(values.get("producers", "")),
    )


async def patiently(
    act: Callable[[], Any], *, say: Callable[[Exception], None], seconds: float = 0.5
) -> Any:
    """Repeat `act` until it succeeds, and return its result: at first the cluster may not be there
    yet.
    """
    while True:
        try:
            return await act()
        except (TimeoutError, NatsError, SiltstoneError, OSError) as exc:
            say(exc)
            await asyncio.sleep(seconds)
