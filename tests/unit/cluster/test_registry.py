from __future__ import annotations

from siltstone.cluster.registry import (
    DroppedDatabase,
    Registered,
    decode_placement,
    decode_site,
    encode_placement,
    encode_site,
)
from siltstone.cluster.shared_log import StreamName
from siltstone.store.shard.replicated.port import Founding
from siltstone.store.slab.settings import DatabaseSettings
from siltstone.store.writer.replication.messages import LogIdentity
from siltstone.store.writer.replication.sites.membership import ShardSites
from siltstone.store.writer.replication.sites.planning import Site, SiteRole

KNOWN = Registered(
    name="messages",
    founding=Founding(
        salt=7, created_us=8, settings=DatabaseSettings(backend="replicated", shards=2)
    ),
    nonces=(b"n" * 16, b"m" * 16),
    is_ready=True,
    revision=3,
)


def test_an_entry_describes_the_database_whole() -> None:
    assert Registered.decode("messages", KNOWN.encode(is_ready=True), 3) == KNOWN


def test_an_entry_says_whether_its_streams_exist() -> None:
    assert not Registered.decode("messages", KNOWN.encode(is_ready=False), 3).is_ready


def test_the_stream_of_a_shard_is_named_after_the_identity() -> None:
    name = StreamName.of(LogIdentity(database=b"\x01" * 16, shard=5, epoch=1))
    assert name.stream == f"silt_{'01' * 16}_5_e1"
    assert name.subject == f"silt.log.{name.stream}"


def test_a_placement_is_read_as_it_was_written_also_one_of_an_earlier_version() -> None:
    placement = ShardSites(
        replicas=frozenset("abc"),
        insync=frozenset("ab"),
        trim=7,
        wanted=frozenset("abd"),
        preferred="b",
    )
    assert decode_placement(encode_placement(placement)) == placement
    earlier = b'{"replicas": ["a", "b"], "insync": ["a", "b"], "trim": 3}'
    assert decode_placement(earlier) == ShardSites(
        replicas=frozenset("ab"), insync=frozenset("ab"), trim=3
    )


def test_a_site_is_read_as_it_was_written() -> None:
    site = Site(role=SiteRole.LEAVING, zone="hall 2")
    assert decode_site(encode_site(site)) == site


def test_a_dropped_database_is_read_as_it_was_written() -> None:
    dropped = DroppedDatabase(
        name="kv/stock", identity=b"i" * 16, shards=3, is_cleared=False, revision=9
    )
    encoded = dropped.encode(is_cleared=False)
    assert DroppedDatabase.decode(b"i" * 16, encoded, 9) == dropped
    assert DroppedDatabase.decode(b"i" * 16, dropped.encode(is_cleared=True), 9).is_cleared
