from __future__ import annotations

from tests.support.command_line import CommandLine


def test_the_status_without_a_broker_says_what_to_start(siltstone: CommandLine) -> None:
    outcome = siltstone("cluster", "status")
    assert (outcome.status, outcome.err) == (
        2,
        "siltstone: no broker is running on /data; start it with 'siltstone serve'\n",
    )
