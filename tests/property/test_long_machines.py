"""The state machines that are short in every run, at length; `make soak` prints their seed."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from tests.property.test_archive_machine import ArchiveMachine
from tests.property.test_fs_durability import Durability
from tests.property.test_lending import Group
from tests.property.test_outbox import OutboxMachine
from tests.property.test_router import RouterMachine
from tests.property.test_snapshot_keeper import Snapshots
from tests.property.test_spool_machine import SpoolMachine
from tests.property.test_tx_machine import TransactionMachine

LONG = settings(max_examples=1_000, stateful_step_count=60, deadline=None, print_blob=True)
MACHINES: list[type[RuleBasedStateMachine]] = [
    ArchiveMachine,
    Durability,
    Group,
    OutboxMachine,
    RouterMachine,
    Snapshots,
    SpoolMachine,
    TransactionMachine,
]


@pytest.mark.soak
@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.__name__)
def test_a_machine_agrees_with_its_model_over_long_histories(
    machine: type[RuleBasedStateMachine],
) -> None:
    run_state_machine_as_test(machine, settings=LONG)
