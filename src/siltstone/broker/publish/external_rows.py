"""Delivery of rows that were not stored by MQTT clients, for example those of Arrow Flight.

The rows are already in the store, where durable sessions read them. This module sends them to the
sessions in memory and keeps the retained ones. Everything runs on the loop.
"""

from __future__ import annotations

import logging

from siltstone.broker.broker import Broker
from siltstone.errors import SiltstoneError
from siltstone.logs import log
from siltstone.mqtt.flow import find_flags, pick
from siltstone.mqtt.publish import NO_EXPIRY, PublishBatch, expiry_of, stored_properties
from siltstone.rows.batch import RETAIN
from siltstone.store.log.write.partition import Columns


def publish_rows(broker: Broker, rows: Columns) -> None:
    """Send rows to their subscribers, and keep those with the retain flag."""
    batch = batch_of(rows)
    retained = find_flags(batch, RETAIN)
    if not retained and not len(broker.router):
        return
    publishers = rows.publisher
    names = [publishers] * rows.count if isinstance(publishers, bytes) else publishers
    by_publisher: dict[bytes, list[int]] = {}
    for index in retained:
        by_publisher.setdefault(names[index], []).append(index)
    for publisher, indexes in by_publisher.items():
        try:
            broker.retain(pick(batch, indexes), publisher, None)
        except SiltstoneError as exc:
            log(broker.log, logging.WARNING, "external_rows_not_retained", error=str(exc))
    broker.router.dispatch(batch, None, broker.shell.now())


def batch_of(rows: Columns) -> PublishBatch:
    """Return rows as a batch of MQTT messages."""
    batch = PublishBatch()
    batch.topics = rows.topics
    batch.values = rows.values
    batch.flags = [rows.flags] * rows.count if isinstance(rows.flags, int) else rows.flags
    batch.packet_ids = [0] * rows.count
    if rows.properties is not None:
        batch.properties = [stored_properties(properties) for properties in rows.properties]
        expiries = [expiry_of(properties) for properties in batch.properties]
        if any(expiry != NO_EXPIRY for expiry in expiries):
            batch.expiries = expiries
    return batch
