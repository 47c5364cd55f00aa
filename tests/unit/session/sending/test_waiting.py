from __future__ import annotations

from pathlib import PurePath

import pytest

from siltstone.errors import CorruptionError
from siltstone.fs.memory import MemoryFileSystem
from siltstone.session.durable.progress import SessionProgress
from siltstone.session.sending.delivery import Budget, Delivery, Run, Spilled, encode_run
from siltstone.session.sending.waiting import Unsaved, Waiting

SIZE = Delivery(b"t", b"p", 1, b"", 0.0).size()


def one(payload: bytes = b"p", flags: int = 1) -> Delivery:
    return Delivery(b"t", payload, flags, b"", 0.0)


def row(progress: SessionProgress, serial: int) -> Delivery:
    delivery = one(b"%d" % serial)
    delivery.lane = progress.lane(0)
    delivery.serial = serial
    return delivery


def payloads(waiting: Waiting) -> list[bytes]:
    return [delivery.payload for delivery in waiting.messages()]


def queue(
    messages: int = 4, size_bytes: int = 100 * SIZE, budget: Budget | None = None, **policy: bool
) -> Waiting:
    drop_old = policy.get("drop_old", False)
    return Waiting(budget or Budget(100 * SIZE), messages, size_bytes, drop_old)


def on_disk(payload: bytes) -> Delivery:
    file = MemoryFileSystem().create(PurePath("/payloads"))
    file.write(payload)
    delivery = one(b"")
    delivery.spilled = Spilled(file, 0, len(payload))
    return delivery


def test_payloads_on_disk_are_loaded_when_they_leave_and_counts_come_out_even() -> None:
    budget = Budget(100 * SIZE)
    waiting = queue(budget=budget)
    waiting.add_row(on_disk(b"first"))
    waiting.add_row(on_disk(b"second"))
    assert (payloads(waiting), budget.used) == ([b"", b""], 2 * one(b"").size())
    assert waiting.pop().payload == b"first"
    assert [delivery.payload for delivery in waiting.take_others()] == [b"second"]
    assert budget.used == 0


def run_of(*messages: Delivery) -> Run:
    file = MemoryFileSystem().create(PurePath("/runs"))
    data = encode_run(list(messages))
    file.write(data)
    return Run(Spilled(file, 0, len(data)), len(messages), sum(each.size() for each in messages))


class TestMessagesOnDisk:
    def test_they_leave_in_order_between_their_neighbours(self) -> None:
        budget = Budget(100 * SIZE)
        waiting = queue(messages=100, budget=budget)
        waiting.add_row(one(b"0"))
        waiting.add_run(run_of(one(b"1"), one(b"2", 2)))
        waiting.add_run(run_of(one(b"3")))
        waiting.add(one(b"4"))
        waiting.add(one(b"5", 0))
        waiting.add(one(b"6"))
        assert (len(waiting), budget.used) == (7, 7 * SIZE)
        found = [waiting.pop() for _ in range(7)]
        assert [each.payload for each in found] == [b"%d" % n for n in range(7)]
        assert [each.flags for each in found] == [1, 1, 2, 1, 1, 0, 1]
        assert (len(waiting), budget.used) == (0, 0)

    def test_all_are_listed_in_order_and_the_list_of_parts_reads_none(self) -> None:
        waiting = queue(messages=100)
        first, run, last = one(b"0"), run_of(one(b"1"), one(b"2")), one(b"3")
        waiting.add_row(first)
        waiting.add_run(run)
        waiting.add(last)
        assert waiting.parts() == [first, run, last]
        assert payloads(waiting) == [b"0", b"1", b"2", b"3"]
        assert waiting.parts() == waiting.messages()
        waiting.remove({first, last})
        assert (payloads(waiting), len(waiting)) == ([b"1", b"2"], 2)

    def test_they_count_for_the_limits_and_the_oldest_make_room(self) -> None:
        budget = Budget(100 * SIZE)
        waiting = queue(messages=4, budget=budget, drop_old=True)
        waiting.add_row(one(b"0"))
        waiting.add_run(run_of(one(b"1"), one(b"2"), one(b"3")))
        assert waiting.is_long()
        assert waiting.add(one(b"4"))
        assert waiting.add(one(b"5"))
        assert (payloads(waiting), waiting.dropped) == ([b"2", b"3", b"4", b"5"], 2)
        assert budget.used == 4 * SIZE

    def test_all_are_forgotten(self) -> None:
        budget = Budget(100 * SIZE)
        waiting = queue(messages=100, budget=budget)
        waiting.add_row(one())
        waiting.add_run(run_of(one(), one()))
        waiting.add(one())
        waiting.clear()
        assert (len(waiting), waiting.parts(), budget.used) == (0, [], 0)
        waiting.add(one(b"new"))
        assert payloads(waiting) == [b"new"]

    def test_while_they_cannot_be_read_nothing_changes(self) -> None:
        waiting = queue(messages=100)
        waiting.add_row(one(b"0"))
        file = MemoryFileSystem().create(PurePath("/runs"))
        data = encode_run([one(b"1")])
        waiting.add_run(Run(Spilled(file, 0, len(data)), 1, SIZE))
        for _ in range(2):
            with pytest.raises(CorruptionError, match="the file ends before the payload does"):
                waiting.pop()
        assert len(waiting) == 2
        file.write(data)
        assert [waiting.pop().payload for _ in range(2)] == [b"0", b"1"]

    def test_everything_about_a_message_comes_back(self) -> None:
        file = MemoryFileSystem().create(PurePath("/runs"))
        file.write(b"xpayload")
        plain = Delivery(b"t/1", b"p", 5, b"\x01\x01", 12.5)
        spilled = Delivery(b"t/2", b"", 2, b"", 0.0)
        spilled.spilled = Spilled(file, 1, 7)
        data = encode_run([plain, spilled])
        file.write(data)
        found = Run(Spilled(file, 8, len(data)), 2, 0).read()
        assert [
            (each.topic, each.body(), each.flags, each.properties, each.expires_at)
            for each in found
        ] == [(b"t/1", b"p", 5, b"\x01\x01", 12.5), (b"t/2", b"payload", 2, b"", 0.0)]
        assert found[1].size() == spilled.size()

    @pytest.mark.parametrize(
        ("is_readable", "kept"),
        [
            ((False, False), b"012345"),
            ((False, True), b"d12345"),
            ((True, False), b"b12345"),
        ],
    )
    def test_those_that_cannot_be_read_make_room_all_together(
        self, is_readable: tuple[bool, bool], kept: bytes
    ) -> None:
        budget = Budget(100 * SIZE)
        waiting = queue(messages=6, budget=budget, drop_old=True)
        waiting.add_row(one(b"0"))
        for pair, readable in zip((b"ab", b"cd"), is_readable, strict=True):
            data = encode_run([one(pair[:1]), one(pair[1:])])
            file = MemoryFileSystem().create(PurePath("/runs"))
            if readable:
                file.write(data)
            waiting.add_run(Run(Spilled(file, 0, len(data)), 2, 2 * SIZE))
        for number in range(1, 6):
            waiting.add(one(b"%d" % number))
            assert budget.used == len(waiting) * SIZE
        assert b"".join(payloads(waiting)) == kept
        assert waiting.dropped == 4
        assert isinstance(waiting.unreadable, CorruptionError)


def test_a_message_whose_payload_cannot_be_read_waits_on() -> None:
    budget = Budget(100 * SIZE)
    waiting = queue(budget=budget)
    broken = on_disk(b"broken")
    waiting.add_row(one(b"first"))
    waiting.add_row(on_disk(b"second"))
    waiting.add_row(broken)
    used = budget.used
    whole, broken.spilled = broken.spilled, Spilled(MemoryFileSystem().create(PurePath("/p")), 0, 6)
    with pytest.raises(CorruptionError, match="the file ends before the payload does"):
        waiting.take_others()
    assert (len(waiting), budget.used) == (3, used)
    assert [waiting.pop().payload for _ in range(2)] == [b"first", b"second"]
    used = budget.used
    with pytest.raises(CorruptionError, match="the file ends before the payload does"):
        waiting.pop()
    assert (waiting.messages(), budget.used) == ([broken], used)
    broken.spilled = whole
    assert (waiting.pop().payload, budget.used) == (b"broken", 0)


class TestLimits:
    def test_what_does_not_fit_is_dropped(self) -> None:
        waiting = queue(messages=2)
        assert [waiting.add(one(payload)) for payload in (b"1", b"2", b"3")] == [False] * 3
        assert (payloads(waiting), waiting.dropped) == ([b"1", b"2"], 1)

    def test_or_the_oldest_make_room(self) -> None:
        waiting = queue(messages=2, drop_old=True)
        assert [waiting.add(one(payload)) for payload in (b"1", b"2", b"3")] == [False, False, True]
        assert (payloads(waiting), waiting.dropped) == ([b"2", b"3"], 1)

    def test_nothing_is_dropped_in_vain(self) -> None:
        waiting = queue(size_bytes=3 * SIZE, drop_old=True)
        waiting.add(one(b"1"))
        assert not waiting.add(one(b"x" * 3 * SIZE))
        assert (payloads(waiting), waiting.dropped) == ([b"1"], 1)

    def test_bytes_are_limited_for_one_and_for_all(self) -> None:
        budget = Budget(3 * SIZE)
        first, second = queue(budget=budget), queue(budget=budget, size_bytes=SIZE)
        for waiting in (first, second):
            waiting.add(one())
            waiting.add(one())
        assert (len(first), len(second), second.dropped) == (2, 1, 1)
        first.add(one())
        assert (len(first), first.dropped, budget.used) == (2, 1, 3 * SIZE)

    def test_where_all_hold_too_much_each_may_replace_what_it_has(self) -> None:
        budget = Budget(SIZE)
        waiting = queue(budget=budget, drop_old=True)
        waiting.add(one(b"1"))
        assert waiting.add(one(b"2"))
        assert (payloads(waiting), budget.used) == ([b"2"], SIZE)

    def test_rows_of_the_store_always_fit(self) -> None:
        waiting = queue(messages=1, size_bytes=SIZE)
        for serial in range(3):
            waiting.add_row(row(SessionProgress(), serial))
        assert (len(waiting), waiting.dropped) == (3, 0)

    def test_rows_of_the_store_make_room_for_nothing(self) -> None:
        progress = SessionProgress()
        waiting = queue(messages=2, drop_old=True)
        for serial in range(2):
            waiting.add_row(row(progress, serial))
        assert not any(waiting.add(one(b"new", flags)) for flags in (0, 1, 2))
        assert (payloads(waiting), waiting.dropped) == ([b"0", b"1"], 3)

    def test_a_new_message_takes_the_place_of_the_oldest_that_is_no_row(self) -> None:
        budget = Budget(100 * SIZE)
        progress = SessionProgress()
        waiting = queue(messages=3, budget=budget, drop_old=True)
        waiting.add_row(row(progress, 0))
        waiting.add(one(b"a"))
        waiting.add_row(row(progress, 1))
        assert waiting.add(one(b"b"))
        assert (payloads(waiting), waiting.dropped) == ([b"0", b"1", b"b"], 1)
        assert [waiting.pop().payload for _ in range(3)] == [b"0", b"1", b"b"]
        assert budget.used == 0

    def test_qos_0_takes_the_place_of_qos_0_only(self) -> None:
        waiting = queue(messages=3, drop_old=True)
        for payload, flags in ((b"1", 1), (b"2", 4), (b"3", 2)):
            waiting.add(one(payload, flags))
        assert waiting.add(one(b"4", 0))
        assert (payloads(waiting), waiting.dropped) == ([b"1", b"3", b"4"], 1)
        assert waiting.add(one(b"5", 1))
        assert (payloads(waiting), waiting.dropped) == ([b"3", b"4", b"5"], 2)
        assert waiting.add(one(b"6", 1))
        assert not waiting.add(one(b"x" * SIZE * 100, 0))
        assert (payloads(waiting), waiting.dropped) == ([b"4", b"5", b"6"], 4)
        assert waiting.add(one(b"7", 2))
        assert not waiting.add(one(b"8", 0))
        assert (payloads(waiting), waiting.dropped) == ([b"5", b"6", b"7"], 6)

    def test_qos_0_is_not_dropped_in_vain_behind_what_stays(self) -> None:
        waiting = queue(size_bytes=3 * SIZE, drop_old=True)
        waiting.add(one(b"1", 1))
        waiting.add(one(b"2", 1))
        waiting.add(one(b"3", 0))
        assert not waiting.add(one(b"x" * (SIZE // 2), 0))
        assert (payloads(waiting), waiting.dropped) == ([b"1", b"2", b"3"], 1)

    def test_how_full_it_is(self) -> None:
        waiting = queue(messages=4)
        seen = []
        for _ in range(4):
            seen.append((waiting.is_short(), waiting.is_long()))
            waiting.add(one())
        assert seen == [(True, False), (True, False), (False, False), (False, True)]


class TestTaking:
    def test_what_came_first_goes_first(self) -> None:
        budget = Budget(100 * SIZE)
        waiting = queue(budget=budget)
        waiting.add(one(b"1", 2))
        waiting.add(one(b"2", 1))
        assert (waiting.first_flags(), waiting.pop().payload, waiting.first_flags()) == (2, b"1", 1)
        assert budget.used == SIZE

    def test_messages_of_all_kinds_are_listed_in_the_order_in_which_they_came(self) -> None:
        waiting = queue(messages=10)
        for number, flags in enumerate((1, 0, 2, 0)):
            waiting.add(one(b"%d" % number, flags))
        waiting.add_row(row(SessionProgress(), 4))
        waiting.add(one(b"5", 1))
        assert payloads(waiting) == [b"0", b"1", b"2", b"3", b"4", b"5"]

    @pytest.mark.parametrize("flags", [0, 1])
    def test_messages_of_one_kind_are_in_order_without_a_sort(self, flags: int) -> None:
        waiting = queue()
        found = [one(b"%d" % number, flags) for number in range(3)]
        for delivery in found:
            waiting.add(delivery)
        for delivery in found:
            # Only a sort would see these places.
            delivery.place = -delivery.place
        assert waiting.messages() == found

    def test_without_a_connection_qos_0_is_of_no_use(self) -> None:
        budget = Budget(100 * SIZE)
        waiting = queue(budget=budget)
        for number, flags in enumerate((0, 1, 4, 2)):
            waiting.add(one(b"%d" % number, flags))
        waiting.keep_acknowledged()
        assert (payloads(waiting), budget.used) == ([b"1", b"3"], 2 * SIZE)

    def test_the_rows_of_one_owner_are_taken_out(self) -> None:
        budget = Budget(100 * SIZE)
        waiting = queue(budget=budget)
        mine, other = SessionProgress(), SessionProgress()
        waiting.add_row(row(mine, 1))
        waiting.add_row(row(other, 2))
        waiting.add(one(b"n"))
        waiting.add_row(row(mine, 3))
        assert [delivery.serial for delivery in waiting.take_rows(mine)] == [1, 3]
        assert (payloads(waiting), budget.used) == ([b"2", b"n"], 2 * SIZE)

    def test_what_is_no_row_is_taken_out(self) -> None:
        budget = Budget(100 * SIZE)
        waiting = queue(budget=budget)
        waiting.add(one(b"no row"))
        waiting.add_row(row(SessionProgress(), 1))
        assert [delivery.payload for delivery in waiting.take_others()] == [b"no row"]
        assert (payloads(waiting), budget.used) == ([b"1"], SIZE)

    def test_some_are_taken_out_wherever_they_are(self) -> None:
        budget = Budget(100 * SIZE)
        waiting = queue(budget=budget)
        rows = [row(SessionProgress(), serial) for serial in range(4)]
        for delivery in rows:
            waiting.add_row(delivery)
        waiting.remove({rows[1], rows[3]})
        assert (payloads(waiting), budget.used) == ([b"0", b"2"], 2 * SIZE)

    def test_all_are_forgotten(self) -> None:
        budget = Budget(100 * SIZE)
        waiting = queue(budget=budget)
        waiting.add(one())
        waiting.clear()
        assert (len(waiting), budget.used) == (0, 0)


class TestUnsaved:
    """Messages that must be saved first, and those behind them."""

    def test_what_comes_behind_waits_and_goes_with_it(self) -> None:
        unsaved = Unsaved()
        assert not unsaved.holds()
        second, first, none = one(flags=2), one(flags=1), one(flags=0)
        unsaved.add_to_save(second)
        unsaved.add(first)
        unsaved.add(none)
        assert (unsaved.holds(), unsaved.size_bytes) == (True, 3 * SIZE)
        taken = unsaved.take()
        assert (taken, unsaved.holds()) == ([second, first, none], True)
        assert unsaved.saved(taken) == [second, first, none]
        assert (unsaved.holds(), unsaved.size_bytes) == (False, 0)

    def test_what_came_meanwhile_goes_too_unless_it_must_be_saved(self) -> None:
        unsaved = Unsaved()
        early, late = one(b"1", flags=2), one(b"2")
        unsaved.add_to_save(early)
        taken = unsaved.take()
        unsaved.add(late)
        assert unsaved.saved(taken) == [early, late]
        unsaved.add_to_save(early)
        taken = unsaved.take()
        last = one(b"3", flags=2)
        unsaved.add(late)
        unsaved.add_to_save(last)
        assert unsaved.saved(taken) == [early]
        assert (unsaved.holds(), unsaved.size_bytes) == (True, 2 * SIZE)
        assert unsaved.saved(unsaved.take()) == [late, last]

    def test_a_save_that_has_nothing_of_it_holds_nothing(self) -> None:
        unsaved = Unsaved()
        assert (unsaved.take(), unsaved.holds(), unsaved.saved([])) == ([], False, [])
