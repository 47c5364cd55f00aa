from __future__ import annotations

from dataclasses import replace

from siltstone.session.archive.records import SavedSession
from siltstone.session.archive.view import ArchiveView
from siltstone.store.tx.reading import KeyValueReader
from tests.support.archive_builders import GROUP, WHOLE, ArchiveWorld


def test_whoever_looks_sees_whole_sessions_in_order_as_they_were_saved() -> None:
    with ArchiveWorld() as world:
        other = SavedSession(client_id="a/#")
        for session in (WHOLE, other):
            world.archive.create(session)
        view = ArchiveView(KeyValueReader(world.memory.reopened()))
        assert view.client_ids() == ["a/#", "client/1"]
        assert [view.session(client_id) for client_id in view.client_ids()] == [other, WHOLE]
        assert view.session("nobody") is None


def test_whoever_looks_sees_whole_groups_in_order() -> None:
    with ArchiveWorld() as world:
        other = replace(GROUP, name="f", filter="#")
        for group in (GROUP, other):
            world.archive.create_groups([group])
        view = ArchiveView(KeyValueReader(world.memory.reopened()))
        assert list(view.groups()) == [other, GROUP]
        assert (view.group("$share/g/a/+"), view.group("$share/g/b")) == (GROUP, None)
