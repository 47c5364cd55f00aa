"""Network namespaces for the sites of a cluster: each site has an address of its own, and a link
that can be cut. A bridge in another namespace joins the links; the network of the machine is not
touched.
"""

from __future__ import annotations

import ctypes
import secrets
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

_NET = 0x40000000
_PLACE = Path("/run/netns")
NOT_PERMITTED = "NETWORK NAMESPACES ARE NOT PERMITTED HERE: partitions of real sites are NOT tested"


class Network:
    """One namespace for each site. `address` has the address of each."""

    def __init__(self, names: Sequence[str]) -> None:
        self._token = f"silt{secrets.token_hex(3)}"
        self._hub = f"{self._token}-hub"
        self._names = tuple(names)
        self.address = {name: f"10.77.0.{number}" for number, name in enumerate(names, 1)}

    def build(self) -> None:
        """Create the namespaces. Raises: OSError, CalledProcessError if that is not permitted."""
        _ip("netns", "add", self._hub)
        _ip("-n", self._hub, "link", "add", "bridge", "type", "bridge")
        _ip("-n", self._hub, "link", "set", "bridge", "up")
        for name, address in self.address.items():
            space = self.space(name)
            _ip("netns", "add", space)
            pair = ("type", "veth", "peer", "name", "wire", "netns", space)
            _ip("-n", self._hub, "link", "add", f"to-{name}", *pair)
            _ip("-n", self._hub, "link", "set", f"to-{name}", "master", "bridge")
            _ip("-n", space, "address", "add", f"{address}/24", "dev", "wire")
            for link in ("lo", "wire"):
                _ip("-n", space, "link", "set", link, "up")
            self.join(name)

    def remove(self) -> None:
        """Delete the namespaces."""
        for name in (self._hub, *map(self.space, self._names)):
            if (_PLACE / name).exists():
                with suppress(subprocess.CalledProcessError):
                    _ip("netns", "delete", name)

    def space(self, name: str) -> str:
        """Return the name of the namespace of a site."""
        return f"{self._token}-{name}"

    def command(self, name: str) -> tuple[str, ...]:
        """Return what begins a command that runs at a site; the process keeps its id."""
        return ("ip", "netns", "exec", self.space(name))

    def cut(self, name: str) -> None:
        """Cut a site off from the others. Its own clients still reach it."""
        _ip("-n", self._hub, "link", "set", f"to-{name}", "down")

    def join(self, name: str) -> None:
        """Connect a site with the others again."""
        _ip("-n", self._hub, "link", "set", f"to-{name}", "up")

    @contextmanager
    def inside(self, name: str) -> Iterator[None]:
        """Let this thread open sockets at a site; they stay there."""
        with Path("/proc/thread-self/ns/net").open("rb") as own:
            with (_PLACE / self.space(name)).open("rb") as theirs:
                _enter(theirs.fileno())
            try:
                yield
            finally:
                _enter(own.fileno())


@contextmanager
def network(names: Sequence[str]) -> Iterator[Network]:
    """Create namespaces for sites; skip the test, and say why, where that is not permitted."""
    net = Network(names)
    try:
        net.build()
    except (OSError, subprocess.CalledProcessError) as exc:
        net.remove()
        reason = getattr(exc, "stderr", None) or exc
        pytest.skip(f"{NOT_PERMITTED}: {reason!s}")
    try:
        yield net
    finally:
        net.remove()


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)  # noqa: S607


def _enter(space: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(space, _NET):
        raise OSError(ctypes.get_errno(), "cannot enter the network namespace")
