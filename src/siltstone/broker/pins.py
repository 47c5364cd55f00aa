"""What keeps rows from being reclaimed for a while: a backup that copies them, a session that is
moved back to them.
"""

from __future__ import annotations

from collections.abc import Callable


class Pins:
    """Counts those that need all rows as they are. Taken and let go of on the loop; any thread may
    ask.
    """

    def __init__(self) -> None:
        self._count = 0
        # How often one was taken.
        self.taken = 0

    def take(self) -> Callable[[], None]:
        """Keep all rows from now on; return what lets go of them, once."""
        self._count += 1
        self.taken += 1
        let_go = False

        def release() -> None:
            nonlocal let_go
            if not let_go:
                let_go = True
                self._count -= 1

        return release

    def is_free(self, taken: int) -> bool:
        """Tell whether none is held, and none was taken since there were so many."""
        return self._count == 0 and self.taken == taken
