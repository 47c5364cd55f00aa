"""One shard at one site: claims, boots, stops, jumps."""

from __future__ import annotations

import pytest

from siltstone.errors import UsageError
from siltstone.store.writer.replication.actions import (
    Copy,
    FetchMessage,
    Lead,
    Refused,
    StepDown,
    StopReading,
    StoreMessage,
    Unknown,
)
from siltstone.store.writer.replication.codec import decode
from siltstone.store.writer.replication.follower import FollowerStatus, LogBounds, PeerProgress
from siltstone.store.writer.replication.leader import NOT_LEADER, CallAdmission
from siltstone.store.writer.replication.messages import ProducerCall, Term
from siltstone.store.writer.replication.producers import Producers
from siltstone.store.writer.replication.shard import ReplicatedShard
from tests.support.replication_log import GENESIS, NONCE, OneSite, P, follower, published


def test_a_site_leads_when_it_sees_its_own_term_count() -> None:
    site = OneSite()
    (claim,) = published(site.shard.claim())
    assert site.shard.leader is None
    actions = site.store(claim)
    assert actions[1:] == [Lead(1)]
    assert isinstance(actions[0], StoreMessage)
    assert site.shard.claim() == []


def test_a_claim_names_the_history_on_which_the_claimant_stands() -> None:
    site = OneSite()
    (claim,) = published(site.shard.claim())
    root = site.shard.position.root
    assert decode(claim) == Term(epoch=1, term=1, root=root, site="a", boot=1)


def test_the_term_of_another_boot_of_the_same_site_does_not_make_it_lead() -> None:
    site = OneSite()
    assert len(site.store(site.term("a", 2))) == 1
    assert site.shard.leader is None


def test_only_the_first_claim_of_a_term_counts() -> None:
    site = OneSite()
    other, own = site.term("b", 7), published(site.shard.claim())[0]
    site.store(other)
    assert site.store(own) == []
    assert (site.shard.leader, site.shard.position.site) == (None, "b")


def test_a_site_without_genesis_does_not_claim() -> None:
    assert ReplicatedShard("a", 1, follower()).claim() == []


def test_a_site_that_does_not_lead_refuses_everything() -> None:
    shard = OneSite().shard
    call = ProducerCall(producer=P, number=1, previous=0)
    assert shard.admit(1, call) == (
        CallAdmission.ANSWERED,
        [Refused(request=1, reason=NOT_LEADER, last=0)],
    )
    assert shard.close(2, P) == [Refused(request=2, reason=NOT_LEADER, last=0)]
    assert shard.ask(3) == [Refused(request=3, reason=NOT_LEADER, last=0)]
    assert shard.publish_again() == []


def test_a_stopped_leader_knows_nothing_of_its_outbox_and_reads_no_further() -> None:
    site = OneSite().lead()
    (data,) = site.call(1, 1, 0)
    lost = LogBounds(first=1, last=1, nonce=NONCE)
    actions = site.shard.attach(lost)
    assert actions[:2] == [StepDown(1), Unknown(1)]
    assert isinstance(actions[2], StopReading)
    assert site.store(data) == []
    assert site.shard.attach(lost) == []
    assert site.shard.claim() == []
    assert site.shard.ask(2) == [Unknown(2)]


def test_a_gap_is_fetched() -> None:
    shard = OneSite().shard
    assert shard.read(3, GENESIS) == [FetchMessage(2, "the sequence has a gap")]


def test_a_heartbeat_with_another_history_stops_the_site() -> None:
    shard = OneSite().shard
    assert shard.compare(shard.follower.progress()) == []
    (stop,) = shard.compare(PeerProgress(sequence=1, index=1, chain=b"x" * 16))
    assert isinstance(stop, StopReading)


def test_a_site_behind_the_trim_jumps_with_a_new_boot_and_forgets_its_outbox() -> None:
    peer = OneSite().lead()
    site = OneSite()
    for data in peer.log[1:]:
        site.store(data)
    site.call(5, 1, 0)
    for number in (1, 2, 3):
        peer.store(peer.call(number, number, number - 1)[0])
    assert site.shard.attach(LogBounds(first=4, last=5, nonce=NONCE)) == [Copy(4)]
    assert site.shard.follower.status is FollowerStatus.BEHIND
    mark = peer.shard.position.mark()
    table = Producers.decode(peer.shard.follower.producers.encode())
    assert site.shard.jump(mark, table, (), boot=2) == [StepDown(1), Unknown(5)]
    assert (site.shard.position, site.shard.boot, site.shard.leader) == (mark, 2, None)
    assert site.shard.attach(LogBounds(first=4, last=5, nonce=NONCE)) == []


def test_a_jump_to_an_older_state_or_with_a_used_boot_is_refused() -> None:
    site, peer = OneSite(), OneSite().lead()
    with pytest.raises(UsageError, match="older than that of this site"):
        site.shard.jump(site.shard.position.mark(), Producers(), (), boot=2)
    with pytest.raises(UsageError, match="a jump needs a new boot, got 1 again"):
        site.shard.jump(peer.shard.position.mark(), Producers(), (), boot=1)


def test_an_idle_leader_stops_at_a_record_of_its_term_that_it_did_not_publish() -> None:
    site, other = OneSite().lead(), OneSite().lead()
    actions = site.store(other.call(1, 1, 0)[0])
    assert actions[0] == StepDown(1)
    assert isinstance(actions[1], StopReading)
