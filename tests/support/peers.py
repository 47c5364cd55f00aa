"""Third-party programs that tests run: their paths, and the handling of missing ones.

If one is not installed, its tests are skipped, and the header of the run says so; with
SILTSTONE_REQUIRE_PEERS=1 they fail instead. `tools/peers.sh` fetches what is missing.
"""

from __future__ import annotations

import os
import platform
import shutil
from pathlib import Path

import pytest

PEERS = Path(__file__).parents[2] / "build" / "peers"
NAMES = ("mosquitto", "mosquitto_pub", "mosquitto_sub", "node", "mqtt.js")


def find_peer(name: str) -> str | None:
    """Return the path of a program, or of a module of node; None if it is not installed."""
    if name == "mqtt.js":
        module = PEERS / "node_modules" / "mqtt"
        return str(module) if module.is_dir() else None
    # Debian installs the server in sbin, which is only in the PATH of root.
    places = [PEERS / "usr" / "bin", PEERS / "usr" / "sbin", Path("/usr/sbin")]
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(map(str, places)))


def missing_peers() -> list[str]:
    """Return the names of the programs that are not installed."""
    return [name for name in NAMES if find_peer(name) is None]


def need_peer(name: str) -> str:
    """Return the path of a peer; without it, skip the test, or fail if all are required."""
    if found := find_peer(name):
        return found
    if os.environ.get("SILTSTONE_REQUIRE_PEERS") == "1":
        pytest.fail(f"{name} is not installed, and SILTSTONE_REQUIRE_PEERS=1")
    pytest.skip(f"{name} is not installed: tools/peers.sh fetches it")


def peer_environment() -> dict[str, str]:
    """Return the environment for a peer, with the libraries that were fetched for it."""
    libraries = PEERS / "usr" / "lib" / f"{platform.machine()}-linux-gnu"
    if not libraries.is_dir():
        return dict(os.environ)
    known = os.environ.get("LD_LIBRARY_PATH")
    return dict(os.environ) | {
        "LD_LIBRARY_PATH": os.pathsep.join(filter(None, (str(libraries), known)))
    }
