from __future__ import annotations

from array import array
from math import inf, nan
from threading import TIMEOUT_MAX
from typing import Any

import pytest

from siltstone.errors import (
    InvalidTopicError,
    OutcomeUnknownError,
    RetryError,
    SiltstoneError,
    UsageError,
)
from siltstone.store.writer.ticket import Outcome, RowPlaces, Ticket, seconds_to_wait
from tests.support.builders import new_database, rows_on


def outcome(
    *,
    count: int = 2,
    timestamp_us: int = 1000,
    frame_serial: int = 50,
    frame_timestamp_us: int = 1000,
    times: list[int] | None = None,
    places: RowPlaces | None = None,
    duplicate: bool = False,
) -> Outcome:
    if times is not None:
        places = RowPlaces(lambda: memoryview(array("q", times)))
    return Outcome(
        duplicate=duplicate,
        count=count,
        timestamp_us=timestamp_us,
        frame_serial=frame_serial,
        frame_timestamp_us=frame_timestamp_us,
        frame_places=places,
    )


def resolved(*parts: Outcome | Exception, count: int = 2, waits: bool = True) -> Ticket:
    ticket = Ticket(count, len(parts), waits=waits)
    for part in parts:
        ticket.resolve(part, None)
    return ticket


class TestSerials:
    def test_in_a_frame_of_one_stream_serials_follow_the_order_of_arrival(self) -> None:
        call = outcome(count=3, timestamp_us=1004, frame_timestamp_us=1000, frame_serial=50)
        assert call.serials() == [54, 55, 56]

    def test_in_a_frame_of_many_streams_a_time_tells_the_row(self) -> None:
        # Rows 1000 to 1005 arrived in order and were grouped by stream. The call has 1002 to 1004.
        call = outcome(count=3, timestamp_us=1002, times=[1001, 1003, 1005, 1000, 1002, 1004])
        assert call.serials() == [54, 51, 55]

    def test_the_times_of_a_frame_are_read_once_for_all_its_calls(self) -> None:
        reads = []

        def times() -> memoryview:
            reads.append("read")
            return memoryview(array("q", [1001, 1003, 1000, 1002]))

        places = RowPlaces(times)
        calls = [outcome(timestamp_us=at, places=places) for at in (1000, 1002)]
        assert reads == []
        assert [call.serials() for call in calls] == [[52, 50], [53, 51]]
        assert reads == ["read"]

    def test_a_call_of_no_rows_has_no_serials(self) -> None:
        assert outcome(count=0).serials() == []
        assert outcome(count=0, times=[1000]).serials() == []


class TestTicket:
    def test_a_call_of_no_parts_is_done_at_once(self) -> None:
        ticket = Ticket(0, 0, waits=True)
        assert (ticket.done, ticket.error, ticket.wait() is ticket) == (True, None, True)
        assert (ticket.serials(), ticket.timestamps()) == ([], [])
        with pytest.raises(
            UsageError, match="the call did not append a row, so it does not have a first row"
        ):
            ticket.first_serial()

    def test_a_ticket_is_done_when_its_last_part_is(self) -> None:
        ticket = Ticket(2, 2, waits=True)
        seen = [ticket.done]
        for row in range(2):
            ticket.resolve(outcome(count=1), [row])
            seen.append(ticket.done)
        assert seen == [False, False, True]

    def test_a_call_that_was_stored_in_part_is_not_done_before_its_error_says_so(self) -> None:
        seen: list[bool] = []

        class WatchingError(RetryError):
            def __str__(self) -> str:
                seen.append(ticket.done)
                return "no room"

        ticket = Ticket(2, 2, waits=True)
        ticket.resolve(outcome(count=1), [0])
        ticket.resolve(WatchingError(), [1])
        assert (seen, type(ticket.error)) == ([False], OutcomeUnknownError)

    def test_waiting_returns_the_ticket(self) -> None:
        ticket = resolved(outcome())
        assert ticket.wait() is ticket
        assert ticket.wait(timeout=0) is ticket

    def test_when_time_runs_out_the_outcome_is_unknown(self) -> None:
        ticket = Ticket(1, 1, waits=True)
        with pytest.raises(
            OutcomeUnknownError, match=r"^the outcome is not known after 0 seconds$"
        ):
            ticket.wait(timeout=0)
        assert not ticket.done

    def test_an_outcome_can_come_after_time_ran_out(self) -> None:
        ticket = Ticket(2, 1, waits=True)
        with pytest.raises(OutcomeUnknownError):
            ticket.wait(timeout=0)
        ticket.resolve(outcome(), None)
        assert ticket.wait(timeout=0).serials() == [50, 51]

    def test_a_caller_that_chose_no_durability_does_not_wait(self) -> None:
        ticket = Ticket(1, 1, waits=False)
        assert ticket.wait() is ticket
        assert not ticket.done

    def test_waiting_raises_what_befell_the_call_each_time(self) -> None:
        error = InvalidTopicError("bad")
        ticket = resolved(error)
        assert ticket.error is error
        for ask in (ticket.wait, ticket.wait, ticket.serials, ticket.timestamps):
            with pytest.raises(InvalidTopicError) as caught:
                ask()
            assert caught.value is error

    def test_rows_of_many_parts_come_in_the_order_of_the_call(self) -> None:
        ticket = Ticket(3, 2, waits=True)
        ticket.resolve(outcome(count=1, frame_serial=900), [1])
        ticket.resolve(outcome(count=2, timestamp_us=7, frame_timestamp_us=7), [0, 2])
        assert (ticket.serials(), ticket.timestamps()) == ([50, 900, 51], [7, 1000, 8])

    def test_a_duplicate_has_neither_serials_nor_timestamps(self) -> None:
        ticket = resolved(outcome(count=0, duplicate=True))
        assert (ticket.duplicate, ticket.serials(), ticket.timestamps()) == (True, [0, 0], [0, 0])

    @pytest.mark.parametrize(
        ("parts", "duplicate"), [((True, True), True), ((True, False), False), ((), False)]
    )
    def test_a_call_is_a_duplicate_when_all_its_parts_are(
        self, parts: tuple[bool, ...], duplicate: bool
    ) -> None:
        ticket = resolved(*(outcome(count=0, duplicate=part) for part in parts))
        assert ticket.duplicate is duplicate


class TestPartly:
    def test_the_first_of_several_errors_is_told(self) -> None:
        first = InvalidTopicError("first")
        assert resolved(first, InvalidTopicError("second")).error is first

    @pytest.mark.parametrize("stored_first", [True, False])
    def test_a_call_that_was_stored_in_part_is_in_doubt(self, stored_first: bool) -> None:
        error = InvalidTopicError("bad")
        parts: list[Outcome | Exception] = [outcome(), error]
        ticket = resolved(*(parts if stored_first else parts[::-1]))
        assert isinstance(ticket.error, OutcomeUnknownError)
        assert str(ticket.error) == "only the rows of some shards were stored: bad"
        assert ticket.error.__cause__ is error
        with pytest.raises(OutcomeUnknownError):
            ticket.wait()


class TestCallbacks:
    def test_callbacks_are_called_once_with_the_ticket_when_it_is_done(self) -> None:
        seen: list[tuple[str, Ticket]] = []
        ticket = Ticket(2, 2, waits=True)
        ticket.on_done(lambda done: seen.append(("first", done)))
        ticket.on_done(lambda done: seen.append(("second", done)))
        ticket.resolve(outcome(count=1), [0])
        assert seen == []
        ticket.resolve(outcome(count=1), [1])
        assert seen == [("first", ticket), ("second", ticket)]

    def test_a_callback_on_a_done_ticket_is_called_at_once(self) -> None:
        seen: list[SiltstoneError | Exception | None] = []
        error = InvalidTopicError("bad")
        resolved(error).on_done(lambda done: seen.append(done.error))
        assert seen == [error]

    def test_a_callback_can_ask_for_the_serials(self) -> None:
        seen: list[list[int]] = []
        ticket = Ticket(2, 1, waits=False)
        ticket.on_done(lambda done: seen.append(done.serials()))
        ticket.resolve(outcome(), None)
        assert seen == [[50, 51]]


NO_TIMEOUTS = [
    (nan, "timeout must be 0 seconds or more: timeout=nan"),
    (-0.5, "timeout must be 0 seconds or more: timeout=-0.5"),
    (-inf, "timeout must be 0 seconds or more: timeout=-inf"),
    (-1, "timeout must be 0 seconds or more: timeout=-1"),
    ("x", "timeout must be a number of seconds: type=str"),
    (True, "timeout must be a number of seconds: type=bool"),
    (1j, "timeout must be a number of seconds: type=complex"),
]


class TestTimeout:
    @pytest.mark.parametrize("timeout", [0, 0.0, 1, 2.5, 1e9])
    def test_a_number_of_seconds_is_waited_for(self, timeout: float) -> None:
        assert seconds_to_wait(timeout) == timeout
        assert resolved(outcome()).wait(timeout).done

    @pytest.mark.parametrize("timeout", [None, inf, 1e30, 10**400, TIMEOUT_MAX])
    def test_more_than_a_thread_can_wait_for_is_for_ever(self, timeout: float | None) -> None:
        assert seconds_to_wait(timeout) is None
        assert resolved(outcome()).wait(timeout).done

    @pytest.mark.parametrize(("timeout", "message"), NO_TIMEOUTS)
    @pytest.mark.parametrize("waits", [True, False])
    def test_anything_else_is_refused_also_where_nothing_is_waited_for(
        self, timeout: Any, message: str, *, waits: bool
    ) -> None:
        with pytest.raises(UsageError) as caught:
            resolved(outcome(), waits=waits).wait(timeout)
        assert str(caught.value) == message

    @pytest.mark.parametrize(("timeout", "message"), NO_TIMEOUTS)
    def test_an_append_refuses_it_at_once_though_there_is_room(
        self, timeout: Any, message: str
    ) -> None:
        with new_database() as database:
            with pytest.raises(UsageError) as caught:
                database.append(rows_on("t"), timeout=timeout)
            assert str(caught.value) == message
            assert database.count() == 0
            database.append(rows_on("t"), timeout=inf).wait()
            assert database.count() == 1
