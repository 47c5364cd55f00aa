from __future__ import annotations

from siltstone.session.archive.records import SavedReceived
from siltstone.session.inbound import UnreleasedMessages


def test_what_is_to_be_appended_is_saved_with_producer_and_sequence() -> None:
    inbound = UnreleasedMessages("c", [])
    name, sequence = inbound.expect([4, 2])
    token = int(name.removeprefix("session/c/"), 16)
    assert inbound.records() == (
        SavedReceived(2, token, sequence),
        SavedReceived(4, token, sequence),
    )
    assert inbound.certain() == {2, 4}


def test_the_sequences_of_a_producer_rise() -> None:
    inbound = UnreleasedMessages("c", [])
    first, second = inbound.expect([1]), inbound.expect([2])
    assert (first[0], first[1] + 1) == second


def test_two_connections_of_one_client_id_are_two_producers() -> None:
    names = {UnreleasedMessages("c", []).expect([1])[0] for _ in range(2)}
    assert len(names) == 2


def test_after_a_failure_another_name_is_used() -> None:
    inbound = UnreleasedMessages("c", [])
    before = inbound.expect([1])
    inbound.renew()
    assert inbound.expect([2])[0] != before[0]


class TestDoubt:
    def test_a_message_that_was_announced_is_doubtful_after_a_crash(self) -> None:
        before = UnreleasedMessages("c", [])
        producer = before.expect([5])
        inbound = UnreleasedMessages("c", before.records())
        assert inbound.certain() == set()
        assert inbound.doubt_of(5) == producer
        assert (inbound.doubt_of(5), inbound.records()) == (producer, before.records())

    def test_one_that_turns_out_to_be_stored_is_doubtful_no_longer(self) -> None:
        before = UnreleasedMessages("c", [])
        before.expect([5, 6])
        inbound = UnreleasedMessages("c", before.records())
        inbound.release([6])
        inbound.confirm([5, 6])
        assert (inbound.doubt_of(5), inbound.records()) == (None, (SavedReceived(5),))

    def test_one_that_was_not_stored_is_forgotten(self) -> None:
        before = UnreleasedMessages("c", [])
        before.expect([5])
        inbound = UnreleasedMessages("c", before.records())
        inbound.release([5])
        assert (inbound.doubt_of(5), inbound.records()) == (None, ())

    def test_one_that_is_stored_is_not(self) -> None:
        inbound = UnreleasedMessages("c", [SavedReceived(5)])
        assert (inbound.certain(), inbound.doubt_of(5)) == ({5}, None)

    def test_one_whose_outcome_is_known_at_the_end_is_not(self) -> None:
        before = UnreleasedMessages("c", [])
        before.expect([5])
        assert before.records(settled=True) == (SavedReceived(5),)

    def test_one_that_was_not_asked_about_stays_doubtful_over_a_connection(self) -> None:
        before = UnreleasedMessages("c", [])
        before.expect([5])
        between = UnreleasedMessages("c", before.records())
        assert between.records(settled=True) == before.records()

    def test_who_releases_a_message_was_told_that_it_is_stored(self) -> None:
        before = UnreleasedMessages("c", [SavedReceived(9)])
        before.expect([5, 6])
        inbound = UnreleasedMessages("c", before.records())
        assert inbound.trust([5, 9]) == {5}
        inbound.release([5, 9])
        assert ([record.packet_id for record in inbound.records()], inbound.certain()) == (
            [6],
            set(),
        )

    def test_what_nobody_stores_is_never_doubtful(self) -> None:
        inbound = UnreleasedMessages("c", [])
        inbound.keep(3)
        assert inbound.records() == (SavedReceived(3),)

    def test_where_an_outcome_may_never_be_heard_the_store_is_asked(self) -> None:
        before = UnreleasedMessages("c", [SavedReceived(3)])
        name, sequence = before.expect([5])
        before.doubt()
        inbound = UnreleasedMessages("c", before.records(settled=True))
        assert (inbound.certain(), inbound.doubt_of(5)) == ({3}, (name, sequence))
