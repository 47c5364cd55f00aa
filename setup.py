"""Compile the hot modules with mypyc, in one group so that they call each other natively.

Without a working C compiler, or with SILTSTONE_PURE=1, the same files install as plain Python.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import cast

from mypyc.build import mypycify
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

# The one list of compiled modules; the Makefile and tests/test_tidy.py read it from here.
COMPILED = (
    "src/siltstone/broker/backpressure.py",
    "src/siltstone/broker/bridge.py",
    "src/siltstone/broker/broker.py",
    "src/siltstone/broker/capture.py",
    "src/siltstone/broker/channel.py",
    "src/siltstone/broker/client.py",
    "src/siltstone/broker/gather.py",
    "src/siltstone/broker/intake.py",
    "src/siltstone/broker/keep_alive.py",
    "src/siltstone/broker/rate.py",
    "src/siltstone/broker/requests.py",
    "src/siltstone/broker/revival.py",
    "src/siltstone/broker/router.py",
    "src/siltstone/broker/shares.py",
    "src/siltstone/broker/statistics.py",
    "src/siltstone/broker/taps.py",
    "src/siltstone/broker/timers.py",
    "src/siltstone/feed/batch.py",
    "src/siltstone/feed/decode.py",
    "src/siltstone/feed/dispatch.py",
    "src/siltstone/feed/groups.py",
    "src/siltstone/feed/hub.py",
    "src/siltstone/feed/pool.py",
    "src/siltstone/guard.py",
    "src/siltstone/kv/keys.py",
    "src/siltstone/mqtt/connection.py",
    "src/siltstone/mqtt/flow.py",
    "src/siltstone/mqtt/publish.py",
    "src/siltstone/mqtt/splitter.py",
    "src/siltstone/segment/body.py",
    "src/siltstone/segment/frame.py",
    "src/siltstone/session/backlog.py",
    "src/siltstone/session/delivery.py",
    "src/siltstone/session/inflight.py",
    "src/siltstone/session/lending.py",
    "src/siltstone/session/outbox.py",
    "src/siltstone/session/progress.py",
    "src/siltstone/session/reader.py",
    "src/siltstone/session/session.py",
    "src/siltstone/session/waiting.py",
    "src/siltstone/session/wish.py",
    "src/siltstone/snapshot/codec.py",
    "src/siltstone/snapshot/digests.py",
    "src/siltstone/snapshot/loader.py",
    "src/siltstone/snapshot/stream.py",
    "src/siltstone/snapshot/writer.py",
    "src/siltstone/store/cook.py",
    "src/siltstone/topic/matcher.py",
    "src/siltstone/topic/structure.py",
    "src/siltstone/tx/arguments.py",
    "src/siltstone/tx/committer.py",
    "src/siltstone/tx/conflicts.py",
    "src/siltstone/tx/operations.py",
    "src/siltstone/tx/pending.py",
    "src/siltstone/tx/queue.py",
    "src/siltstone/tx/sight.py",
    "src/siltstone/tx/ticket.py",
    "src/siltstone/tx/transaction.py",
)


class BuildAllOrNone(build_ext):
    """Leave the pure form when one extension fails: half of a group cannot be imported."""

    def build_extensions(self) -> None:
        super().build_extensions()
        built = [Path(self.get_ext_fullpath(extension.name)) for extension in self.extensions]
        if not all(path.exists() for path in built):
            for path in built:
                path.unlink(missing_ok=True)


def extensions() -> list[Extension]:
    """Return what to compile: nothing when plain Python is asked for."""
    if os.environ.get("SILTSTONE_PURE") == "1":
        return []
    # Types are checked by `make types`. A build in isolation has none of the dependencies at hand,
    # so it reads no strict settings and takes what it cannot import as Any.
    options = ["--config-file=", "--ignore-missing-imports"]
    built = mypycify([*options, *COMPILED], opt_level="3", group_name="siltstone")
    for extension in built:
        extension.optional = True
    return cast("list[Extension]", built)


setup(ext_modules=extensions(), cmdclass={"build_ext": BuildAllOrNone})
