from __future__ import annotations

import asyncio
import threading

from siltstone.bridge.threads import Threads


def test_work_is_done_beside_the_loop_and_heard_of_on_it() -> None:
    async def main() -> None:
        threads = Threads(asyncio.get_running_loop())
        here = threading.get_ident()
        seen: list[bool] = []
        done = asyncio.Event()

        def then() -> None:
            seen.append(threading.get_ident() == here)
            done.set()

        threads.act(lambda: seen.append(threading.get_ident() == here), then)
        await done.wait()
        assert seen == [False, True]
        assert await threads.run(threading.get_ident) != here
        threads.close()

    asyncio.run(main())
