"""The layout of a data directory.

LOCK  VERSION  CLOCK      the lock, the version of the format, the clocks at the last write
data/<database>/          a database of messages
kv/<database>/            a key-value database
commits/                  the key-value database of positions
snapshots/  quarantine/   files with the whole state; damaged files
spool/<bridge>/           messages that wait for another broker
lake/<database>/          Delta tables
staging/                  rows that a job has written and not yet committed
cluster/                  NATS of a site of a cluster
control.sock  flight.sock the sockets of a running broker
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

LOCK: Final = "LOCK"
VERSION_FILE: Final = "VERSION"
CLOCK: Final = "CLOCK"
DATA: Final = "data"
KEYVALUES: Final = "kv"
COMMITS: Final = "commits"
SNAPSHOTS: Final = "snapshots"
SPOOL: Final = "spool"
CONTROL: Final = "control.sock"
FLIGHT: Final = "flight.sock"


@dataclass(frozen=True, slots=True)
class StorePaths:
    """The paths in one data directory."""

    root: PurePath

    @property
    def lock(self) -> PurePath:
        """The file that the only writer has locked."""
        return self.root / LOCK

    @property
    def version(self) -> PurePath:
        """The version of the format."""
        return self.root / VERSION_FILE

    @property
    def clock(self) -> PurePath:
        """The state of the clocks at the last write."""
        return self.root / CLOCK

    @property
    def data(self) -> PurePath:
        """The directory of the databases of messages."""
        return self.root / DATA

    def database(self, name: str) -> PurePath:
        """Return the directory of a database of messages."""
        return self.root / DATA / name

    @property
    def keyvalues(self) -> PurePath:
        """The directory of the key-value databases."""
        return self.root / KEYVALUES

    def keyvalue(self, name: str) -> PurePath:
        """Return the directory of a key-value database."""
        return self.commits if name == COMMITS else self.keyvalues / name

    @property
    def commits(self) -> PurePath:
        """The key-value database of positions."""
        return self.root / COMMITS

    @property
    def snapshots(self) -> PurePath:
        """The directory of snapshots."""
        return self.root / SNAPSHOTS

    @property
    def quarantine(self) -> PurePath:
        """The directory of damaged files that repair has set aside."""
        return self.root / "quarantine"

    def spool(self, name: str) -> PurePath:
        """Return the directory of the spool of a bridge."""
        return self.root / SPOOL / name

    def lake(self, database: str) -> PurePath:
        """Return the directory of the Delta tables of a database."""
        return self.root / "lake" / database

    @property
    def staging(self) -> PurePath:
        """The directory of staged rows."""
        return self.root / "staging"

    @property
    def cluster(self) -> PurePath:
        """The directory of the NATS server of a site of a cluster."""
        return self.root / "cluster"

    @property
    def control_socket(self) -> PurePath:
        """The socket for requests to a running broker."""
        return self.root / CONTROL

    @property
    def flight_socket(self) -> PurePath:
        """The socket of a broker that serves Flight."""
        return self.root / FLIGHT
