"""A subscription of a session."""

from __future__ import annotations

from dataclasses import dataclass

from siltstone.mqtt.packets import Subscription


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscribed:
    """A subscription with its identifier, 0 for none."""

    subscription: Subscription
    identifier: int
