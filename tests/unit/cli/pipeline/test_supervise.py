from __future__ import annotations

from siltstone.broker.settings.broker import BrokerSettings
from siltstone.cli.pipeline.supervise import PAUSE_FIRST, PAUSE_MAX, next_pause, tier_command


def test_a_job_that_ends_soon_again_and_again_is_started_less_often() -> None:
    pauses = [PAUSE_FIRST]
    for _ in range(7):
        pauses.append(next_pause(pauses[-1], 3.0))
    assert pauses == [1, 2, 4, 8, 16, 32, PAUSE_MAX, PAUSE_MAX]
    assert next_pause(PAUSE_MAX, 600.0) == PAUSE_FIRST


def test_the_command_has_the_settings_of_the_broker() -> None:
    settings = BrokerSettings.model_validate(
        {
            "data": "/d",
            "storage": {"database": "plant"},
            "tier": {"continuous": True, "freshness": 0.5, "keep_hours": 24, "memory": "2g"},
        }
    )
    command = " ".join(tier_command(settings)[1:])
    assert command == (
        "-P -m siltstone.cli.main pipeline tier --data /d --database plant --continuous "
        "--freshness 0.500s --keep 24 --master local[2] --memory 2g --supervised"
    )
