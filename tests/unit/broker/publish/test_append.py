from __future__ import annotations

from collections import deque
from collections.abc import Callable

import pytest

from siltstone.broker.publish.append import AppendBatcher
from siltstone.errors import OutcomeUnknownError, OverloadedError, PoisonedError
from siltstone.mqtt.publish import PublishBatch
from siltstone.store.database import Durability
from tests.support.broker_core import ScriptedDatabase, over_quota

PENDING_BYTES_MAX = 1000


class Desk:
    """A bridge whose loop is turned by hand, over a database that answers when told to."""

    def __init__(self, *, append_bytes: int = 16 * 1024 * 1024, pipelined_rows: int = 1) -> None:
        self.acts: deque[Callable[[], None]] = deque()
        self.database = ScriptedDatabase(automatic=False)
        self.later: list[Callable[[], None]] = []
        self.bridge = AppendBatcher(
            self.database,
            self.acts.append,
            self.acts.append,
            lambda _, act: self.later.append(act),
            PENDING_BYTES_MAX,
            append_bytes=append_bytes,
            pipelined_rows=pipelined_rows,
            may_wait=lambda: self.may_wait,
        )
        self.may_wait = True
        self.heard: list[tuple[str, Exception | None]] = []

    def append(
        self,
        name: str,
        *payloads: str,
        durability: Durability = "synced",
        publisher: str = "p",
        is_checked: bool = False,
    ) -> None:
        """Append a batch on one topic; who waits for it has its name."""
        batch = batch_of(name, *(payloads or (name,)))
        if is_checked:
            batch = checked(batch)
        self.bridge.append(
            batch, publisher.encode(), durability, lambda error: self.heard.append((name, error))
        )

    def turn(self) -> None:
        while self.acts:
            self.acts.popleft()()

    def settle(self, error: Exception | None = None, *, index: int = 0) -> None:
        self.database.settle(error, index=index)
        self.turn()

    @property
    def under_way(self) -> list[list[bytes]]:
        """The payloads of each append that the database has."""
        return [append.values for append in self.database.pending]


def fail(*_: object) -> None:
    raise RuntimeError("on purpose")


def batch_of(topic: str, *payloads: str) -> PublishBatch:
    batch = PublishBatch()
    batch.topics = [topic.encode()] * len(payloads)
    batch.values = [payload.encode() for payload in payloads]
    batch.flags = [1] * len(payloads)
    batch.packet_ids = list(range(1, len(payloads) + 1))
    return batch


def checked(batch: PublishBatch) -> PublishBatch:
    """Return a batch as the splitter makes it: checked, with its totals."""
    batch.measure()
    batch.checked = True
    return batch


class TestAppendsOnTheLoop:
    def test_a_few_rows_are_stored_and_told_of_in_the_turn_that_gives_them_out(self) -> None:
        desk = Desk()
        desk.database.is_handy = True
        for name in ("a", "b"):
            desk.append(name, is_checked=True)
        assert desk.heard == []
        desk.turn()
        assert desk.heard == [("a", None), ("b", None)]
        assert (desk.database.stored_here, desk.bridge.pending_bytes) == (1, 0)

    @pytest.mark.parametrize(
        ("durability", "rows", "may_wait"),
        [("written", 1, True), ("none", 1, True), ("synced", 129, True), ("synced", 1, False)],
    )
    def test_others_are_left_to_the_thread_of_the_shard(
        self, durability: Durability, rows: int, may_wait: bool
    ) -> None:
        desk = Desk()
        desk.database.is_handy = True
        desk.may_wait = may_wait
        desk.bridge.append(checked(batch_of("a", *["x"] * rows)), b"p", durability, None)
        desk.turn()
        for act in desk.later:
            act()
        assert (desk.database.stored_here, len(desk.under_way)) == (0, 1)

    def test_many_bytes_are_left_to_the_thread(self) -> None:
        desk = Desk()
        desk.database.is_handy = True
        for size in (60_000, 70_000):
            desk.append("a", "x" * size, is_checked=True)
            desk.turn()
        assert (desk.database.stored_here, len(desk.under_way)) == (1, 1)

    def test_rows_with_a_producer_are_left_to_the_thread(self) -> None:
        desk = Desk()
        desk.database.is_handy = True
        desk.bridge.append(checked(batch_of("a", "x")), b"p", "synced", None, ("device", 1))
        desk.turn()
        assert (desk.database.stored_here, len(desk.under_way)) == (0, 1)

    def test_what_is_appended_by_an_outcome_is_stored_in_the_next_turn_and_not_inside(self) -> None:
        desk = Desk()
        desk.database.is_handy = True
        told: list[str] = []

        def again(_: Exception | None) -> None:
            desk.bridge.append(
                checked(batch_of("b", "2")), b"p", "synced", lambda _: told.append("second")
            )
            told.append("first")

        desk.bridge.append(checked(batch_of("a", "1")), b"p", "synced", again)
        desk.turn()
        assert told == ["first", "second"]
        assert [append.values for append in desk.database.stored] == [[b"1"], [b"2"]]


def test_the_batches_of_one_turn_are_one_append() -> None:
    desk = Desk()
    desk.append("a", "1", "2", publisher="p")
    desk.append("b", publisher="q")
    assert desk.under_way == []
    desk.turn()
    columns = desk.database.pending[0].columns
    assert desk.under_way == [[b"1", b"2", b"b"]]
    assert columns.topics == [b"a", b"a", b"b"]
    assert columns.publisher == [b"p", b"p", b"q"]
    assert (columns.flags, columns.properties) == (1, None)


def test_everyone_in_an_append_hears_of_its_outcome_in_order() -> None:
    desk = Desk()
    desk.append("a")
    desk.append("b")
    desk.turn()
    assert desk.heard == []
    desk.settle()
    assert desk.heard == [("a", None), ("b", None)]
    assert desk.bridge.pending_bytes == 0


def test_an_outcome_is_told_on_the_loop_and_not_by_the_thread_that_knows_it() -> None:
    desk = Desk()
    desk.append("a")
    desk.turn()
    desk.database.settle()
    assert desk.heard == []
    desk.turn()
    assert desk.heard == [("a", None)]


def test_what_comes_while_two_appends_are_under_way_is_one_append_behind_them() -> None:
    desk = Desk()
    for name in ("a", "b"):
        desk.append(name)
        desk.turn()
    for name in ("c", "d"):
        desk.append(name)
        desk.turn()
    assert desk.under_way == [[b"a"], [b"b"]]
    desk.settle()
    assert desk.under_way == [[b"b"], [b"c", b"d"]]


def test_a_small_append_waits_for_the_one_before_it_and_gathers_meanwhile() -> None:
    desk = Desk(pipelined_rows=3)
    for name in ("a", "b", "c"):
        desk.append(name)
        desk.turn()
    assert desk.under_way == [[b"a"]]
    desk.append("d")
    desk.turn()
    assert desk.under_way == [[b"a"], [b"b", b"c", b"d"]]


def test_what_nobody_waits_for_gathers_a_while_and_goes_with_anything_else() -> None:
    desk = Desk(pipelined_rows=3)
    desk.append("a", durability="none")
    desk.append("b", durability="none")
    desk.turn()
    assert (desk.under_way, len(desk.later)) == ([], 1)
    desk.later.pop()()
    assert desk.under_way == [[b"a", b"b"]]
    desk.settle()
    desk.append("c", durability="none")
    desk.append("d", durability="synced", publisher="q")
    desk.turn()
    assert desk.under_way == [[b"d"], [b"c"]]
    desk.settle(index=1)
    desk.append("e", "1", "2", "3", durability="none")
    desk.turn()
    assert desk.under_way == [[b"d"], [b"1", b"2", b"3"]]


def test_an_append_that_is_large_enough_is_closed() -> None:
    desk = Desk(append_bytes=150)
    for name in ("a", "b", "c", "d", "e"):
        desk.append(name, "x" * 20)
    desk.turn()
    assert [append.topics for append in desk.database.pending] == [[b"a", b"b"], [b"c", b"d"]]
    desk.settle()
    assert [append.topics for append in desk.database.pending] == [[b"c", b"d"], [b"e"]]


def test_each_durability_has_appends_of_its_own() -> None:
    desk = Desk()
    durabilities: tuple[Durability, ...] = ("none", "synced", "written")
    for durability in durabilities:
        desk.append(durability, durability=durability, publisher=durability)
    desk.turn()
    assert {append.durability: append.values for append in desk.database.pending} == {
        "none": [b"none"],
        "synced": [b"synced"],
        "written": [b"written"],
    }


def test_rows_of_one_publisher_keep_their_order_over_durabilities() -> None:
    desk = Desk(pipelined_rows=10)
    desk.append("0", durability="synced", publisher="other")
    desk.turn()
    desk.append("1", durability="synced")
    desk.append("2", durability="none")
    desk.append("3", durability="written")
    desk.append("lazy", durability="none", publisher="third")
    desk.turn()
    # They wait for the disk together. What others append does not wait for them.
    assert [(each.durability, each.values) for each in desk.database.pending] == [
        ("synced", [b"0"]),
        ("none", [b"lazy"]),
    ]
    desk.settle()
    assert [(each.durability, each.values) for each in desk.database.pending] == [
        ("none", [b"lazy"]),
        ("synced", [b"1", b"2", b"3"]),
    ]
    desk.append("4", durability="none")
    desk.append("5", durability="written")
    desk.turn()
    # Nothing of theirs waits any more, so the weakest lane has the rows, made stronger.
    desk.settle()
    assert [(each.durability, each.values) for each in desk.database.pending] == [
        ("synced", [b"1", b"2", b"3"]),
        ("written", [b"4", b"5"]),
    ]


def test_an_error_is_told_to_those_in_its_append_alone() -> None:
    desk = Desk()
    error = over_quota()
    for name in ("a", "b"):
        desk.append(name)
        desk.turn()
    desk.settle(error)
    desk.settle()
    assert desk.heard == [("a", error), ("b", None)]
    assert desk.bridge.pending_bytes == 0


def test_a_database_that_takes_nothing_is_told_of_as_an_outcome() -> None:
    desk = Desk()
    error = PoisonedError("a sync failed")
    desk.database.refusals.append(error)
    desk.append("a")
    desk.turn()
    desk.append("b")
    desk.turn()
    assert desk.heard == [("a", error)]
    assert desk.under_way == [[b"b"]]


def test_an_append_that_finds_no_room_is_tried_again_when_another_is_done() -> None:
    desk = Desk()
    desk.append("a")
    desk.turn()
    desk.database.refusals.extend([OverloadedError("full"), OverloadedError("full")])
    desk.append("b")
    desk.turn()
    # Not at once, nor as long as nothing has changed: that would keep the loop busy.
    assert list(map(str, desk.database.refusals)) == ["full"]
    assert (desk.under_way, desk.heard) == ([[b"a"]], [])
    desk.database.refusals.clear()
    desk.settle()
    desk.settle()
    assert desk.heard == [("a", None), ("b", None)]


def test_an_append_that_finds_no_room_lets_none_pass_behind_it() -> None:
    desk = Desk()
    desk.append("a")
    desk.turn()
    desk.database.refusals.append(OverloadedError("full"))
    desk.append("b")
    desk.turn()
    desk.append("c")
    desk.turn()
    desk.settle()
    assert desk.under_way == [[b"b"], [b"c"]]


def test_an_append_that_finds_no_room_waits_for_those_of_other_durabilities() -> None:
    desk = Desk()
    desk.append("a", durability="written")
    desk.turn()
    desk.database.refusals.append(OverloadedError("full"))
    desk.append("b")
    desk.turn()
    assert desk.under_way == [[b"a"]]
    desk.settle()
    assert desk.under_way == [[b"b"]]


def test_without_anything_under_way_no_room_is_an_outcome() -> None:
    desk = Desk()
    error = OverloadedError("full")
    desk.database.refusals.append(error)
    desk.append("a")
    desk.turn()
    assert desk.heard == [("a", error)]
    assert desk.bridge.pending_bytes == 0


def test_it_is_full_while_too_much_waits_for_the_disk_and_tells_once_of_room() -> None:
    desk = Desk()
    resumed: list[str] = []
    desk.append("a", "x" * 400)
    desk.turn()
    assert [desk.bridge.is_full] == [False]
    desk.append("b", "x" * 500)
    desk.turn()
    assert [desk.bridge.is_full] == [True]
    desk.bridge.when_room(lambda: resumed.append("first"))
    desk.bridge.when_room(lambda: resumed.append("second"))
    assert resumed == []
    desk.settle()
    assert [desk.bridge.is_full, *resumed] == [False, "first", "second"]
    desk.settle()
    assert resumed == ["first", "second"]


def test_room_is_not_told_of_as_long_as_it_is_full() -> None:
    desk = Desk()
    resumed: list[str] = []
    desk.append("a", "x" * 100)
    desk.turn()
    desk.append("b", "x" * 1500)
    desk.turn()
    desk.bridge.when_room(lambda: resumed.append("now"))
    desk.settle()
    assert (desk.bridge.is_full, resumed) == (True, [])
    desk.settle()
    assert resumed == ["now"]


def test_who_hears_of_an_outcome_may_append_at_once() -> None:
    desk = Desk()
    heard: list[Exception | None] = []

    def again(error: Exception | None) -> None:
        heard.append(error)
        desk.append("again")

    desk.bridge.append(batch_of("a", "a"), b"p", "synced", again)
    desk.turn()
    desk.settle()
    assert (heard, desk.under_way) == ([None], [[b"again"]])


def test_what_nobody_waits_for_is_stored_too() -> None:
    desk = Desk()
    desk.bridge.append(batch_of("a", "a"), b"p", "none", None)
    desk.turn()
    desk.settle()
    assert desk.database.rows == [(b"a", b"a")]
    assert (desk.bridge.rows, desk.bridge.pending_bytes) == (1, 0)


def test_flags_are_stored_without_dup_and_properties_row_by_row() -> None:
    desk = Desk()
    batch = batch_of("a", "1", "2")
    batch.flags = [1 | 8, 2 | 4]
    batch.properties = [b"", b"\x01\x01"]
    desk.append("first")
    desk.bridge.append(batch, b"p", "synced", None)
    desk.append("last")
    desk.turn()
    columns = desk.database.pending[0].columns
    assert columns.publisher == b"p"
    assert columns.flags == [1, 1, 6, 1]
    assert columns.properties == [b"", b"", b"\x01\x01", b""]


def test_an_append_that_is_refused_again_keeps_its_place() -> None:
    desk = Desk()
    desk.append("a")
    desk.turn()
    desk.database.refusals.extend([OverloadedError("full"), OverloadedError("full")])
    for name in ("b", "c"):
        desk.append(name)
        desk.turn()
    assert desk.under_way == [[b"a"]]
    desk.settle()
    assert desk.under_way == [[b"b"], [b"c"]]


def test_an_append_is_closed_and_the_bridge_full_at_exactly_their_sizes() -> None:
    # A message counts 64 bytes beside its topic and payload.
    desk = Desk(append_bytes=500)
    desk.append("a", "x" * 435)
    full = [desk.bridge.is_full]
    desk.append("b", "x" * 434)
    full.append(desk.bridge.is_full)
    desk.append("c", "")
    desk.turn()
    assert [append.topics for append in desk.database.pending] == [[b"a"], [b"b", b"c"]]
    assert (full, desk.bridge.is_full) == ([False, False], True)
    desk.settle()
    desk.append("d", "x" * (PENDING_BYTES_MAX - desk.bridge.pending_bytes - 65))
    assert (desk.bridge.pending_bytes, desk.bridge.is_full) == (PENDING_BYTES_MAX, True)


def test_who_fails_to_hear_of_an_outcome_keeps_nobody_from_theirs_nor_from_the_next(
    caplog: pytest.LogCaptureFixture,
) -> None:
    desk = Desk()
    resumed: list[str] = []
    desk.append("a")
    desk.bridge.append(batch_of("b", "b"), b"p", "synced", fail)
    desk.append("c", "x" * PENDING_BYTES_MAX)
    for name in ("d", "e", "f"):
        desk.turn()
        desk.append(name)
    desk.bridge.when_room(fail)
    desk.bridge.when_room(lambda: resumed.append("room"))
    desk.settle()
    assert desk.heard == [("a", None), ("c", None)]
    assert (desk.under_way, resumed) == ([[b"d"], [b"e", b"f"]], ["room"])
    desk.settle()
    desk.settle()
    assert desk.heard[2:] == [("d", None), ("e", None), ("f", None)]
    assert (desk.under_way, desk.bridge.pending_bytes) == ([], 0)
    contained = "internal_error"
    assert [record.message for record in caplog.records] == [contained, contained]


def test_what_waits_for_another_disk_counts_until_it_is_released() -> None:
    desk = Desk()
    resumed: list[str] = []
    desk.append("a", "x" * 35)
    desk.bridge.hold(PENDING_BYTES_MAX - 101)
    states = [(desk.bridge.pending_bytes, desk.bridge.is_full)]
    desk.bridge.hold(1)
    states.append((desk.bridge.pending_bytes, desk.bridge.is_full))
    desk.bridge.when_room(lambda: resumed.append("room"))
    desk.bridge.release(0)
    assert resumed == []
    desk.bridge.release(1)
    assert resumed == ["room"]
    desk.bridge.release(PENDING_BYTES_MAX - 101)
    states.append((desk.bridge.pending_bytes, desk.bridge.is_full))
    assert states == [(PENDING_BYTES_MAX - 1, False), (PENDING_BYTES_MAX, True), (100, False)]
    assert resumed == ["room"]


class TestEveryAppendIsSettled:
    def test_one_that_a_mistake_of_ours_stops_fails_and_the_next_ones_go_on(self) -> None:
        desk = Desk()
        desk.append("a")
        desk.database.refusals.append(ValueError("ours"))
        desk.turn()
        desk.append("b")
        desk.turn()
        desk.settle()
        assert [(name, type(error)) for name, error in desk.heard] == [
            ("a", OutcomeUnknownError),
            ("b", type(None)),
        ]
        assert desk.bridge.pending_bytes == 0

    @pytest.mark.parametrize("producer", [None, ("p", 1)])
    def test_one_without_rows_holds_up_nobody(self, producer: tuple[str, int] | None) -> None:
        desk = Desk(pipelined_rows=100)
        heard: list[Exception | None] = []
        desk.bridge.append(PublishBatch(), b"p", "synced", heard.append, producer)
        desk.turn()
        desk.append("b")
        desk.turn()
        desk.settle()
        assert (len(heard), desk.heard, desk.under_way) == (1, [("b", None)], [])

    def test_a_mistake_in_one_that_has_a_producer_leaves_the_count_of_the_others(self) -> None:
        desk = Desk(pipelined_rows=100)
        desk.append("a")
        desk.turn()
        heard: list[Exception | None] = []
        desk.database.refusals.append(ValueError("ours"))
        desk.bridge.append(batch_of("t", "x"), b"p", "synced", heard.append, ("p", 1))
        desk.turn()
        desk.append("b")
        desk.turn()
        assert ([type(error) for error in heard], desk.under_way) == (
            [OutcomeUnknownError],
            [[b"a"]],
        )
        desk.settle()
        assert desk.under_way == [[b"b"]]


class TestOverloadedProducers:
    """A producer's append waits for nobody: overloaded, it is refused and may come again."""

    @pytest.mark.parametrize("others", [1, 2])
    def test_it_is_refused_at_once_while_others_are_under_way(self, others: int) -> None:
        desk = Desk(pipelined_rows=1 if others == 2 else 100)
        names = ["a", "b"][:others]
        for name in names:
            desk.append(name)
            desk.turn()
        heard: list[Exception | None] = []
        overloaded = OverloadedError("much waits")
        desk.database.refusals.append(overloaded)
        desk.bridge.append(batch_of("t", "x"), b"p", "synced", heard.append, ("p", 1))
        desk.turn()
        assert heard == [overloaded]
        # As many are under way as before, so that the next one waits for them.
        desk.append("c")
        desk.turn()
        assert desk.under_way == [[name.encode()] for name in names]
        for _ in range(others + 1):
            desk.settle()
        assert desk.heard == [(name, None) for name in [*names, "c"]]
        assert (desk.under_way, desk.bridge.pending_bytes) == ([], 0)

    def test_it_is_refused_where_nothing_is_under_way_too(self) -> None:
        desk = Desk()
        heard: list[Exception | None] = []
        overloaded = OverloadedError("much waits")
        desk.database.refusals.append(overloaded)
        desk.bridge.append(batch_of("t", "x"), b"p", "synced", heard.append, ("p", 1))
        desk.turn()
        desk.append("a")
        desk.turn()
        desk.settle()
        assert (heard, desk.heard) == ([overloaded], [("a", None)])

    def test_one_behind_it_goes_on_in_the_same_turn(self) -> None:
        desk = Desk()
        heard: list[Exception | None] = []
        overloaded = OverloadedError("much waits")
        desk.database.refusals.append(overloaded)
        for sequence in (1, 2):
            desk.bridge.append(
                batch_of("t", str(sequence)), b"p", "synced", heard.append, ("p", sequence)
            )
        desk.turn()
        assert (heard, [append.producer for append in desk.database.pending]) == (
            [overloaded],
            [("p", 2)],
        )


def test_an_append_of_a_producer_has_the_rows_of_one_batch_alone() -> None:
    desk = Desk()
    desk.append("a")
    desk.bridge.append(batch_of("t", "x"), b"p", "synced", None, ("one", 1))
    desk.append("b")
    desk.bridge.append(batch_of("t", "y"), b"p", "synced", None, ("two", 7))
    desk.append("c")
    desk.turn()
    while desk.under_way:
        desk.settle()
    assert [(each.values, each.producer) for each in desk.database.stored] == [
        ([b"a"], None),
        ([b"x"], ("one", 1)),
        ([b"b"], None),
        ([b"y"], ("two", 7)),
        ([b"c"], None),
    ]
