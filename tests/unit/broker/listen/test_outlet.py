from __future__ import annotations

import gc
import weakref

from tests.support.broker_core import Core, message


def test_a_client_that_has_ended_goes_without_the_collector() -> None:
    core = Core()
    wire = core.connect("c")
    wire.send(message("a", qos=1, packet_id=1))
    core.run()
    left = weakref.ref(wire)
    gc.disable()
    try:
        wire.drop()
        core.run()
        del wire
        assert left() is None
    finally:
        gc.enable()
