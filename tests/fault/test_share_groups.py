"""Share groups over the end of the broker, and over long times without members."""

from __future__ import annotations

import pytest

from siltstone.mqtt.packets import PubRec, PubRel
from tests.support.broker_core import message
from tests.support.group_core import (
    acknowledge,
    come,
    consume,
    group_core,
    join,
    make_core,
    publish,
    saved,
    taken,
    values,
)

DAY = 86_400.0


def numbers(count: int, first: int = 0) -> list[str]:
    return [str(number) for number in range(first, first + count)]


def test_a_delivery_of_qos_2_outlives_the_broker_with_its_packet_id() -> None:
    core = make_core()
    member = join(core, "a", qos=2)
    publish(core, "1", "2", qos=2)
    first, second = taken(member)
    release = PubRel(packet_id=first.packet_id)
    assert member.exchange(PubRec(packet_id=first.packet_id)) == [release]
    core.advance(2)
    core = core.crash()
    again = come(core, "a")
    packets = again.take()
    assert packets == [release, message("t/1", "2", 2, second.packet_id, dup=True)]
    core.close()


def test_what_comes_behind_the_subscription_is_the_groups_whatever_happens() -> None:
    core = make_core()
    join(core, "a")
    publish(core, "1")
    core = core.crash()
    publish(core, "2")
    assert values(come(core, "a")) == ["1", "2"]
    core.close()


@pytest.mark.parametrize("crashes", [1, 3])
def test_progress_survives_the_broker(crashes: int) -> None:
    core = make_core()
    member = join(core, "a")
    found: list[str] = []
    for number in range(crashes):
        publish(core, *numbers(4, 10 * number))
        packets = taken(member)
        acknowledge(member, packets[:3])
        found += [packet.payload.decode() for packet in packets[:3]]
        core.advance(2)
        core = core.crash()
        member = come(core, "a")
    found += consume(member)
    sent = [value for number in range(crashes) for value in numbers(4, 10 * number)]
    assert sorted(found, key=int) == sent
    core.close()


def test_a_group_without_members_keeps_its_place_and_goes_on_there() -> None:
    with group_core(share={"expiry": DAY}) as core:
        member = join(core, "a")
        member.drop()
        core.run()
        publish(core, "1", "2")
        for _ in range(10):
            core.advance(DAY / 20)
        assert consume(join(core, "b", durable=False)) == ["1", "2"]


def test_a_group_without_members_expires_never_early_and_across_restarts() -> None:
    core = make_core(share={"expiry": DAY})
    join(core, "a").drop()
    core.run()
    core.advance(DAY - 2)
    assert saved(core) is not None
    core = core.crash()
    for _ in range(3):
        core.advance(0.6)
    assert saved(core) is not None
    core.advance(0.2)
    core.advance(1.1)
    assert saved(core) is None
    publish(core, "1")
    member = come(core, "a")
    assert values(member) == []
    publish(core, "2")
    assert values(member) == ["2"]
    core.close()


def test_the_time_of_a_group_begins_when_the_broker_does_that_finds_it_without_members() -> None:
    core = make_core(share={"expiry": DAY})
    join(core, "a")
    core.clock.advance(10 * DAY)
    core = core.crash()
    group = saved(core)
    assert group is not None
    assert group.empty_since_us == core.clock.now_us()
    core.close()


def test_a_group_whose_member_returned_does_not_expire() -> None:
    with group_core(share={"expiry": 10}) as core:
        join(core, "a").drop()
        core.run()
        come(core, "a")
        for _ in range(20):
            core.advance(1)
        group = saved(core)
        assert group is not None
        assert group.empty_since_us is None
