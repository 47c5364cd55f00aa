from __future__ import annotations

import pytest
from pydantic import ValidationError

from siltstone.broker.settings.access import AccessSettings


def test_a_login_waits_no_longer_than_the_longest() -> None:
    with pytest.raises(ValidationError, match="must not be above login_delay_max"):
        AccessSettings(login_delay=11)
