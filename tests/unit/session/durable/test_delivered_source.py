from __future__ import annotations

from siltstone.session.durable.delivered_source import DeliveredSource
from siltstone.store.feed.settings import FeedSettings
from siltstone.store.log.read.pieces import Row
from siltstone.store.slab.manifest import SlabId
from siltstone.topic.grammar import TopicFilter
from tests.support.builders import World, settings_of

SETTINGS = FeedSettings()
ALL = [TopicFilter.parse("#")]


def test_what_was_reclaimed_is_passed_by_and_what_retention_took_is_lost() -> None:
    with World().store() as store:
        database = store.create("d", settings_of())
        for value in (b"0", b"1", b"2"):
            database.append([Row("t", value)]).wait()
            database.seal()
        database.append([Row("t", b"3")]).wait()
        source = DeliveredSource(database.feed_source())
        assert (source.ends(), dict(source.position_at(0).serials)) == ([4], {0: 0})
        assert database.reclaim({0: 1}) == [SlabId(0, 1)]
        database.drop_slab(SlabId(0, 2))
        passed = source.read(0, 0, ALL, SETTINGS)
        assert (passed.start, passed.stop, passed.rows_from, passed.batch) == (0, 1, 0, None)
        found = source.read(0, 1, ALL, SETTINGS)
        assert (found.start, found.rows_from) == (1, 2)
        assert found.batch is not None
        found.batch.load()
        assert found.batch.values == [b"2"]
