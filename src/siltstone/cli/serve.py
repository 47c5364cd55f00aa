"""`siltstone serve`: check the settings, then run the broker until it is told to stop."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Annotated

import typer

from siltstone.broker.server import EarlySignals, check_files, run_server
from siltstone.cli.config import (
    ConfigFlag,
    DataFlag,
    HostFlag,
    LogFormatFlag,
    LogLevelFlag,
    PortFlag,
    SetFlag,
    effective_toml,
    hush_libraries,
    settings_from,
)
from siltstone.errors import UsageError
from siltstone.fs.posix import PosixFileSystem
from siltstone.logs import LOGGER, log, start_logging
from siltstone.version import __version__, form


def serve(
    data: DataFlag = None,
    host: HostFlag = None,
    port: PortFlag = None,
    config: ConfigFlag = None,
    log_level: LogLevelFlag = None,
    log_format: LogFormatFlag = None,
    assignments: SetFlag = None,
    check: Annotated[
        bool, typer.Option("--check", help="Check the settings, print them as TOML, and exit.")
    ] = False,
    allow_empty: Annotated[
        bool,
        typer.Option("--allow-empty", help="Start with empty state if no snapshot can be loaded."),
    ] = False,
) -> None:
    """Run the MQTT broker.

    The broker listens on 127.0.0.1:1883 and stores messages in ./siltstone-data, unless options,
    the environment or siltstone.toml say otherwise. Ctrl-C or SIGTERM stops it. SIGHUP reloads
    users, rights and certificates. SIGUSR1 writes a snapshot.

    $ siltstone serve
    $ siltstone serve --data /var/lib/siltstone --host 0.0.0.0 --set allow_anonymous=true
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
    ).settings
    if (place := Path(settings.data)).exists() and not place.is_dir():
        raise UsageError(f"data directory {place} is a file; choose another path with --data")
    if check:
        check_files(settings)
        sys.stdout.write(effective_toml(settings))
        return
    early = EarlySignals()
    hush_libraries()
    start_logging(level=settings.log.level, form=settings.log.format)
    log(
        logging.getLogger(LOGGER),
        logging.INFO,
        "starting",
        version=f"{__version__} ({form()})",
        data=settings.data,
        listeners=", ".join(listener.address for listener in settings.listeners),
    )
    _warn_of_others(place)
    if status := run_server(settings, early, allow_empty=allow_empty):
        raise typer.Exit(status)


def _warn_of_others(data: Path) -> None:
    """Say that every user of the machine may read the data, as version 0.1.0 made directories."""
    if data.exists() and PosixFileSystem().is_open_to_others(data):
        log(
            logging.getLogger(LOGGER),
            logging.WARNING,
            "every user of this machine can enter the data directory: chmod it to 700, or to 2750 "
            "to let its group read",
            data=str(data),
        )
