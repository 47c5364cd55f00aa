"""`siltstone serve`: check the settings, then run the broker until a signal stops it."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Annotated, Final

import typer
from rich.console import Group

from siltstone.broker.listen.sockets import Listener
from siltstone.broker.server import EarlySignals, check_files, run_server
from siltstone.broker.settings.broker import BrokerSettings
from siltstone.cli.mqtt.config import (
    ClusterFlag,
    ConfigFlag,
    DataFlag,
    HostFlag,
    LogFormatFlag,
    LogLevelFlag,
    PortFlag,
    SeedsFlag,
    SetFlag,
    SiteFlag,
    effective_toml,
    hush_libraries,
    settings_from,
)
from siltstone.cli.opening import holder_named
from siltstone.cli.options import DATA_DEFAULT
from siltstone.cli.output.output import console_on, counted, facts, print_on
from siltstone.cli.pipeline.supervise import supervise, tier_command
from siltstone.client.target import PORT
from siltstone.errors import UsageError
from siltstone.fs.posix import PosixFileSystem
from siltstone.logs import LOGGER, log, start_logging
from siltstone.version import __version__, form

# Addresses that a client on this machine reaches without an option for the host.
_LOCAL: Final = ("", "127.0.0.1", "0.0.0.0", "localhost", "[::]", "[::1]")  # noqa: S104
# The default is 8 MiB on most systems. Under a limit of the address space, the memory of the broker
# is then needed for stacks.
_STACK_BYTES: Final = 1024 * 1024


AllowEmpty = Annotated[
    bool,
    typer.Option("--allow-empty", help="Start with empty state if no snapshot can be loaded."),
]


Check = Annotated[
    bool, typer.Option("--check", help="Check the settings, print them as TOML, and exit.")
]


def serve(
    data: DataFlag = None,
    host: HostFlag = None,
    port: PortFlag = None,
    config: ConfigFlag = None,
    log_level: LogLevelFlag = None,
    log_format: LogFormatFlag = None,
    cluster: ClusterFlag = None,
    site: SiteFlag = None,
    seeds: SeedsFlag = None,
    assignments: SetFlag = None,
    check: Check = False,
    allow_empty: AllowEmpty = False,
) -> None:
    """Run the MQTT broker.

    The broker listens on 127.0.0.1:1883 and stores messages in ./siltstone-data, unless options,
    the environment or siltstone.toml say otherwise. Ctrl-C or SIGTERM stops it. SIGHUP reloads
    users, rights and certificates. SIGUSR1 writes a snapshot.

    $ siltstone serve
    $ siltstone serve --data /var/lib/siltstone --port 1884
    $ siltstone serve --config siltstone.toml --check
    """
    settings = settings_from(
        config,
        assignments,
        data=data,
        host=host,
        port=port,
        log_level=log_level,
        log_format=log_format,
        cluster=cluster,
        site=site,
        seeds=seeds,
    ).settings
    if (place := Path(settings.data)).exists() and not place.is_dir():
        raise UsageError(f"data directory {place} is a file; choose another path with --data")
    if check:
        check_files(settings)
        sys.stdout.write(effective_toml(settings))
        return
    threading.stack_size(_STACK_BYTES)
    early = EarlySignals()
    hush_libraries()
    is_watched = sys.stderr.isatty() and settings.log.format == "human"
    level = settings.log.level
    # On a terminal, a summary after the start replaces the events of the start.
    start_logging(
        level="warning" if is_watched and level == "info" else level, form=settings.log.format
    )
    _log_start(settings)
    _warn_of_idle(settings)
    _warn_of_others(place)

    def started(listeners: Iterable[Listener]) -> None:
        addresses = [address for listener in listeners for address in listener.addresses]
        print_on(console_on(sys.stderr), summary(settings, addresses))
        start_logging(level=level, form=settings.log.format)

    with holder_named(place):
        status = run_server(
            settings,
            early,
            allow_empty=allow_empty,
            started=started if is_watched else None,
            beside=[partial(supervise, tier_command(settings))] if settings.tier.continuous else (),
        )
    if status:
        raise typer.Exit(status)


def _log_start(settings: BrokerSettings) -> None:
    log(
        logging.getLogger(LOGGER),
        logging.INFO,
        "starting",
        version=f"{__version__} ({form()})",
        data=settings.data,
        listeners=", ".join(listener.address for listener in settings.listeners),
    )


def summary(settings: BrokerSettings, addresses: Sequence[str]) -> Group:
    """Return the summary for the user who starts a broker."""
    first = next((address for address in addresses if address.startswith("tcp://")), "")
    host, _, port = first.removeprefix("tcp://").rpartition(":")
    server = "" if host in _LOCAL else f" -h {host.strip('[]')}"
    server += "" if port in ("", str(PORT)) else f" -p {port}"
    is_stored = settings.persistence == "store"
    database = settings.storage.database
    place = "" if settings.data == str(DATA_DEFAULT) else f" --data {quote(settings.data)}"
    known = [("Data directory", settings.data)]
    known += [("Listening on", address) for address in addresses]
    known.append(("Storage", _storage(settings)))
    steps = [("Publish a message", f"siltstone pub{server} -t demo/room -m 21.5")] if first else []
    if is_stored:
        steps.append(("Read it back", f"siltstone read {database}{place}"))
    steps.append(("Stop the broker", "Ctrl-C"))
    title = f"Siltstone {__version__} ({form()}) is running."
    return Group(title, "", facts(known), "", facts(steps), "")


def _storage(settings: BrokerSettings) -> str:
    if settings.persistence == "snapshot":
        return "in memory, with snapshots on disk"
    but = f", except by {counted(len(settings.storage.rules), 'rule')}"
    rules = but if settings.storage.rules else ""
    return f"every message is synced to database {settings.storage.database}{rules}"


def _warn_of_idle(settings: BrokerSettings) -> None:
    """Warn about settings that do nothing, because what they configure is off."""
    for switch, names in settings.without_effect().items():
        log(
            logging.getLogger(LOGGER),
            logging.WARNING,
            "settings_without_effect",
            settings=", ".join(names),
            remedy=f"set {switch}, or remove them",
        )


def _warn_of_others(data: Path) -> None:
    """Warn if all users of the machine can read the data; version 0.1.0 made such directories."""
    fs = PosixFileSystem()
    if fs.exists(data) and fs.is_open_to_others(data):
        log(
            logging.getLogger(LOGGER),
            logging.WARNING,
            "data_directory_open",
            data=str(data),
            remedy="chmod it to 700, or to 2750 to let its group read",
        )
