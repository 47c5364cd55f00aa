"""The start of a run of the broker, with the sessions and groups of earlier runs."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import Final

from siltstone.broker.broker import Broker
from siltstone.broker.control.announced_rows import announce_rows
from siltstone.broker.control.clock_watch import ClockWatch
from siltstone.broker.control.reclaimer import Reclaimer
from siltstone.broker.control.socket import (
    Control,
    ControlOperations,
    ControlServer,
    Deed,
    deeds_in_memory,
    serve_control,
)
from siltstone.broker.deliver.feeds import SessionFeeds
from siltstone.broker.retained.log import LOG_NAME
from siltstone.broker.retained.management import RetainedManagement
from siltstone.broker.sessions.deadlines import Deadlines
from siltstone.broker.sessions.durables import Durables
from siltstone.broker.sessions.groups import ShareGroupRules, StoredShareGroups
from siltstone.broker.snapshots.run import Snapshots
from siltstone.clock import Clock
from siltstone.fs.posix import PosixFileSystem
from siltstone.logs import log
from siltstone.manage.databases import ConfigureDatabase
from siltstone.manage.verb import Host
from siltstone.mqtt.reason import Reason
from siltstone.session.archive.keys import group_id
from siltstone.session.archive.store import ARCHIVE_NAME, ARCHIVE_SETTINGS, SessionArchive
from siltstone.session.durable.delivered_source import DeliveredSource
from siltstone.session.session import Session
from siltstone.store.database import Database
from siltstone.store.directory import Store
from siltstone.store.feed.pool import RowSource

_LOG: Final = logging.getLogger("siltstone.sessions")


def keep_sessions(store: Store, broker: Broker, database: Database, clock: Clock) -> None:
    """Start durable sessions: from now on sessions outlive their connections. Blocks."""
    commits = store.keyvalue(ARCHIVE_NAME, ARCHIVE_SETTINGS)
    archive = SessionArchive(commits, clock, database.origin)
    run = begin_run(archive, clock)
    durables = begin_keeping(broker, archive, DeliveredSource(database.feed_source()), run)
    durables.load_interest()
    durables.feeding.listen_with(database.on_commit)
    if database.settings.reclaim == "delivered":
        begin_reclaiming(broker, database)


def begin_reclaiming(broker: Broker, database: Database) -> None:
    """Start the reclaimer of a broker with durable sessions."""
    durables, groups = broker.durables, broker.subscriptions.groups
    assert durables is not None
    assert groups is not None
    broker.reclaimer = Reclaimer(
        database,
        durables,
        groups,
        pins=broker.pins,
        shell=broker.shell,
        timers=broker.timers,
        clock=broker.clock,
    )


def begin_run(archive: SessionArchive, clock: Clock) -> int:
    """Begin a new run with the sessions of the previous one; return its number.

    Clients that were connected when the previous run ended count as disconnected from now on,
    because the time of their last activity is unknown.
    """
    started = archive.begin_run()
    if started.orphans:
        log(_LOG, logging.WARNING, "sessions_found_connected", sessions=len(started.orphans))
    archive.mark_away(started.orphans, clock.now_us())
    _empty_groups(archive, clock.now_us())
    return started.run


def begin_keeping(broker: Broker, archive: SessionArchive, source: RowSource, run: int) -> Durables:
    """Connect a broker with the archive of sessions, and with the store that they read."""
    broker.durables = durables = Durables(
        archive,
        SessionFeeds(source, broker.shell, broker.clock),
        run,
        shell=broker.shell,
        timers=broker.timers,
        clock=broker.clock,
        interest=broker.interest,
        limits=broker.settings.sessions,
        failed=partial(_end_session, broker),
    )
    broker.registry.away = durables.away
    share = broker.settings.share
    broker.subscriptions.groups = groups = StoredShareGroups(
        durables,
        ShareGroupRules(
            strategy=share.strategy,
            loan_timeout=share.loan_timeout,
            expiry_seconds=int(share.expiry),
        ),
        timers=broker.timers,
        clock=broker.clock,
    )
    Deadlines(
        durables,
        groups,
        shell=broker.shell,
        timers=broker.timers,
        clock=broker.clock,
        wills=broker.due_wills,
        ended=broker.subscriptions.forget,
    )
    return durables


def _end_session(broker: Broker, session: Session, error: Exception) -> None:
    """End the connection of a durable session that cannot be saved any more."""
    client_id = session.client_id
    log(_LOG, logging.ERROR, "session_failed", client_id=client_id, error=str(error))
    client = broker.clients.get(client_id)
    if client is not None:
        client.end(Reason.UNSPECIFIED_ERROR, "the state of the session cannot be saved")


def _empty_groups(archive: SessionArchive, now_us: int) -> None:
    """Start the expiry of groups that had members when the broker stopped."""
    after = ""
    while groups := archive.list_groups(after):
        for group in groups:
            if group.empty_since_us is None:
                owned = archive.take_group(group.name, group.filter)
                if owned is not None:
                    owned.put_meta(empty_since_us=now_us)
                    owned.save()
        after = group_id(groups[-1].name, groups[-1].filter)


async def open_control(
    fs: PosixFileSystem,
    store: Store,
    broker: Broker,
    snapshots: Snapshots,
    watch: ClockWatch,
    more: Mapping[str, Deed],
) -> ControlServer | None:
    """Open the control socket."""
    deeds: dict[str, Deed] = {
        "snapshot": snapshots.save_now,
        **RetainedManagement(broker).deeds,
        **watch.deeds,
        **more,
    }
    groups = broker.subscriptions.groups
    if broker.durables is not None and groups is not None:
        source = store.database(broker.settings.storage.database).feed_source()
        control = Control(broker, broker.durables, groups, source)
        watch.come_back = control.come_back
        deeds |= control.deeds
    else:
        deeds |= deeds_in_memory()
    operations = ControlOperations(broker, deeds, _host(store, broker))
    operations.afterwards = {"db-set": partial(_reclaim_if_set, store, broker)}
    return await serve_control(fs, store.path, operations, broker.settings.control_timeout)


def _host(store: Store, broker: Broker) -> Host:
    """Return the store for management verbs, without the parts that the broker needs itself."""
    settings = broker.settings
    if settings.persistence == "snapshot":
        return Host(
            store=store,
            creates_none='this broker has persistence = "snapshot", and does not start in a data '
            "directory with a database",
        )
    uses = {
        settings.storage.database: "the running broker stores messages in it",
        LOG_NAME: "the running broker stores retained messages in it",
    }
    if settings.topiclog.enabled:
        from siltstone.topiclog.log import (  # noqa: PLC0415 - see broker/server.py
            DATABASE as TOPIC_LOGS,
        )

        uses[TOPIC_LOGS] = "the running broker stores topic logs in it"
    return Host(
        store=store,
        uses=uses,
        announce=partial(announce_rows, broker, settings.storage.database),
    )


def _reclaim_if_set(store: Store, broker: Broker, request: ConfigureDatabase) -> None:
    """Start the reclaimer when the setting was switched on. Without the setting, it does
    nothing.
    """
    name = broker.settings.storage.database
    if request.database == name and broker.durables is not None and broker.reclaimer is None:
        database = store.database(name)
        if database.settings.reclaim == "delivered":
            begin_reclaiming(broker, database)
