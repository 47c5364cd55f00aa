"""Commits of a Delta log that are written here: the first one of a table, and files that are added.

    {"commitInfo": {…}}
    {"add": {"path": "date=2026-01-31/00000001-….parquet", "partitionValues": {…}, "size": 1234, …}}
    {"txn": {"appId": "siltstone-…", "version": 1}}

delta-rs costs some milliseconds for each commit, and a batch has one for each table. A commit is
written under another name, synced, and linked to its own name. So a reader sees all of it or
nothing, and it never replaces the commit of another program. It is durable when the directory is
synced, which is before the ledger closes the batch.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import PurePath
from typing import Any, Final
from uuid import uuid4

from siltstone.clock import Clock
from siltstone.errors import ExistsError, SiltstoneError
from siltstone.fs.api import FileSystem
from siltstone.fs.publish import TEMPORARY_SUFFIX, create_directories, remove_file
from siltstone.pipeline.lake.files import MadeFile
from siltstone.version import __version__

LOG: Final = "_delta_log"
# Rollups add to a table without the lock of the lake, so each draft has a name of its own: its time
# in milliseconds, and a random part.
_DRAFT: Final = re.compile(rf"([0-9]{{13,}})-[0-9a-f]{{16}}{re.escape(TEMPORARY_SUFFIX)}")
# The newest version of the protocol whose commits need no other entries than those here.
READER: Final = 1
WRITER: Final = 2
_ENGINE: Final = f"siltstone/{__version__}"


def commit_path(table: PurePath, version: int) -> PurePath:
    """Return the file of the log with a commit."""
    return table / LOG / f"{version:020}.json"


def create_log(
    fs: FileSystem, clock: Clock, table: PurePath, *, schema: str, partition_by: Sequence[str]
) -> bool:
    """Write the first commit of a table, whose schema is JSON; return False if it has one."""
    now_ms = clock.now_us() // 1000
    create_directories(fs, table / LOG)
    return _write(
        fs,
        now_ms,
        commit_path(table, 0),
        [
            {"commitInfo": _about(now_ms, "CREATE TABLE", {"mode": "Ignore"})},
            {"protocol": {"minReaderVersion": READER, "minWriterVersion": WRITER}},
            {
                "metaData": {
                    "id": str(uuid4()),
                    "format": {"provider": "parquet", "options": {}},
                    "schemaString": schema,
                    "partitionColumns": list(partition_by),
                    "configuration": {},
                    "createdTime": now_ms,
                }
            },
        ],
    )


def commit_files(
    fs: FileSystem,
    clock: Clock,
    table: PurePath,
    version: int,
    files: Sequence[MadeFile],
    *,
    transaction: tuple[str, int],
    about: Mapping[str, str],
) -> bool:
    """Write the commit of a version that adds files; return False if the version exists."""
    now_ms = clock.now_us() // 1000
    application, number = transaction
    return _write(
        fs,
        now_ms,
        commit_path(table, version),
        [
            {"commitInfo": _about(now_ms, "WRITE", {"mode": "Append"}) | dict(about)},
            *(
                {
                    "add": {
                        "path": file.path,
                        "partitionValues": dict(file.partition),
                        "size": file.size_bytes,
                        "modificationTime": now_ms,
                        "dataChange": True,
                        "stats": file.stats,
                    }
                }
                for file in files
            ),
            {"txn": {"appId": application, "version": number, "lastUpdated": now_ms}},
        ],
    )


def _about(now_ms: int, operation: str, parameters: Mapping[str, str]) -> dict[str, Any]:
    return {
        "timestamp": now_ms,
        "operation": operation,
        "operationParameters": dict(parameters),
        "engineInfo": _ENGINE,
    }


def remove_drafts(fs: FileSystem, table: PurePath, *, before_ms: int) -> None:
    """Remove the drafts of commits that killed processes left before a time."""
    for entry in list(fs.scan(table / LOG)):
        if (draft := _DRAFT.fullmatch(entry.name)) and int(draft[1]) < before_ms:
            remove_file(fs, table / LOG / entry.name)


def _write(
    fs: FileSystem, now_ms: int, path: PurePath, entries: Sequence[Mapping[str, Any]]
) -> bool:
    """Write a commit durably; return False if there is one of this version."""
    draft = path.with_name(f"{now_ms:013}-{secrets.token_hex(8)}{TEMPORARY_SUFFIX}")
    try:
        with fs.create(draft) as file:
            file.write("".join(f"{json.dumps(entry)}\n" for entry in entries).encode())
            file.sync()
        try:
            fs.link(draft, path)
        except ExistsError:
            return False
    finally:
        # The error that is raised says more than one of the removal.
        with suppress(SiltstoneError):
            fs.remove(draft)
    fs.sync_directory(path.parent)
    return True
