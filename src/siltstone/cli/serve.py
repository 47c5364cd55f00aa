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
        bool, typer.Option("--check", help="Only check the settings, and print them as TOML.")
    ] = False,
    allow_empty: Annotated[
        bool,
        typer.Option("--allow-empty", help="Start without state if no snapshot can be loaded."),
    ] = False,
) -> None:
    """Run the MQTT broker. SIGTERM ends it in good order, SIGHUP reloads users and certificates."""
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
        raise UsageError(f"the data directory is a file: {place}")
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
            "data_directory_open",
            data=str(data),
            remedy="chmod it to 700, or to 2750 to let its group read",
        )
