from __future__ import annotations

from siltstone.scan.origin import DatabaseOrigin, DirectoryOrigin
from siltstone.scan.plan import Admitted
from tests.support.builders import World, rows_on
from tests.support.pipeline import options_of


def test_an_open_database_and_its_directory_are_planned_alike() -> None:
    world = World()
    options = options_of(filters=("a",))
    with world.database() as database:
        database.append(rows_on("a", "b", "a")).wait()
        opened, found = DatabaseOrigin(database, options), DirectoryOrigin(world.fs, options)
        assert found.extents() == opened.extents()
        assert found.plan_batch() == opened.plan_batch()
        assert found.plan_micro_batch({0: 1}, {0: 3}) == opened.plan_micro_batch({0: 1}, {0: 3})
        admitted = found.admit({0: range(3)}, rows_max=None, bytes_max=None)
        assert admitted == Admitted(ends={0: 3}, rows=2)
        found.close()
        opened.close()


def test_a_directory_that_was_closed_is_opened_again() -> None:
    world = World()
    with world.database() as database:
        database.append(rows_on("a")).wait()
    origin = DirectoryOrigin(world.fs, options_of())
    before = origin.extents()
    origin.close()
    assert origin.extents() == before
    origin.close()
