from __future__ import annotations

import asyncio

from siltstone.broker.control.pins import Pins
from siltstone.store.log.read.pieces import Row
from siltstone.store.slab.manifest import SlabId
from tests.support.builders import new_database


def test_rows_are_free_when_every_pin_was_let_go_of_and_none_was_taken_since() -> None:
    pins = Pins()
    assert pins.is_free(0)
    first, second = pins.take(), pins.take()
    assert not pins.is_free(2)
    first()
    first()
    assert not pins.is_free(2)
    second()
    assert pins.is_free(2)
    assert not pins.is_free(1)


def test_a_pin_that_is_taken_during_a_drop_comes_after_it_and_keeps_the_next_one() -> None:
    pins = Pins()

    async def take_meanwhile() -> None:
        with pins.dropping(0) as may_drop:
            assert may_drop
            pins.take()
            settling = asyncio.ensure_future(pins.settled())
            assert await asyncio.wait([settling], timeout=0) == (set(), {settling})
        await settling
        with pins.dropping(0) as may_drop:
            assert not may_drop
        await pins.settled()

    asyncio.run(take_meanwhile())


def test_one_that_may_not_drop_keeps_nobody_waiting() -> None:
    pins = Pins()
    release = pins.take()
    with pins.dropping(1) as may_drop:
        assert not may_drop
        asyncio.run(pins.settled())
    release()
    with pins.dropping(1) as may_drop:
        assert may_drop


def test_a_slab_is_out_of_the_manifest_when_its_drop_lets_pins_go_on() -> None:
    pins = Pins()
    seen: list[list[SlabId]] = []
    with new_database() as database:
        for _ in range(3):
            database.append([Row("t", b"v")]).wait()
            database.seal()

        class Watched:
            """The context of a drop, which takes a pin in the middle of the first one."""

            def __enter__(self) -> bool:
                self.inner = pins.dropping(0)
                may_drop = self.inner.__enter__()
                if may_drop:
                    pins.take()
                return may_drop

            def __exit__(self, *_: object) -> None:
                self.inner.__exit__(None, None, None)
                asyncio.run(pins.settled())
                seen.append([each.slab for each in database.slabs()])

        assert database.reclaim({0: 3}, Watched) == [SlabId(0, 1)]
        left = [SlabId(0, number) for number in (2, 3, 4)]
    assert seen == [left, left]
