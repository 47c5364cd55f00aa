from __future__ import annotations

import pytest
from pydantic import ValidationError

from siltstone.broker.settings.broker import BrokerSettings
from siltstone.broker.settings.cluster import ClusterSettings
from siltstone.broker.settings.storage import Storage

PLANT = ClusterSettings(name="plant", site="a", seeds="127.0.0.1:7400, 127.0.0.1:7401")


def test_without_a_name_there_is_no_cluster() -> None:
    assert not ClusterSettings().enabled
    assert BrokerSettings().messages_settings.backend == "local"


def test_the_messages_of_a_cluster_are_replicated_unless_the_settings_say_otherwise() -> None:
    assert BrokerSettings(cluster=PLANT).messages_settings.backend == "replicated"
    local = BrokerSettings(cluster=PLANT, storage=Storage(backend="local"))
    assert local.messages_settings.backend == "local"


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"site": "a"}, "is missing"),
        ({"name": "plant", "seeds": "h:1"}, "is missing: a cluster needs the name of this site"),
        ({"name": "a b", "site": "a", "seeds": "h:1"}, "must have 1 to 32"),
        ({"name": "plant", "site": "a"}, "is missing: a cluster needs the addresses of its sites"),
        ({"name": "plant", "site": "a", "seeds": "h:1,h"}, "must be HOST:PORT"),
        ({"name": "plant", "site": "a", "seeds": "h:1", "listen": "h"}, "must be HOST:PORT"),
    ],
)
def test_impossible_settings_are_refused(fields: dict[str, str], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        ClusterSettings.model_validate(fields)


def test_a_cluster_needs_a_store() -> None:
    with pytest.raises(ValidationError, match='needs persistence = "store"'):
        BrokerSettings(cluster=PLANT, persistence="snapshot")
