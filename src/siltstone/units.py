"""Units that several packages share."""

from __future__ import annotations

from typing import Final

SECOND_US: Final = 1_000_000
