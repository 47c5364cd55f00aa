"""Write docs/reference/log-events.md: the name, level, meaning and facts of every log event.

    python tools/log_events.py

Names, levels and facts come from the calls in src/siltstone; MEANINGS has the rest. A test compares
the page with the output of this script.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
SOURCE: Final = ROOT / "src" / "siltstone"
PAGE: Final = ROOT / "docs" / "reference" / "log-events.md"

# Function -> the positions of the level and of the event among its arguments.
LOGGING: Final = {"log": (1, 2), "report": (0, 1), "tell": (0, 1)}
METHODS: Final = {"warning": "warning", "error": "error", "exception": "error"}
# Module -> its functions that pass an event on; the event is written where they are called.
PASSES_ON: Final = {
    "broker/connect/connection.py": "report",
    "broker/publish/receive.py": "_tell_refused",
    "broker/control/sparse_log.py": "tell",
}
CLIENT_FACTS: Final = ("client_id", "address", "user", "reason", "text")
# Facts that a call passes on, so they are not in the same call as the event.
SHARD_FACTS: Final = ("database", "shard")
MORE_FACTS: Final[dict[str, tuple[str, ...]]] = {
    "alarm_cleared": ("free_bytes", "keep_free_bytes", "ahead_seconds"),
    "alarm_raised": ("free_bytes", "keep_free_bytes", "ahead_seconds"),
    "client_closed": CLIENT_FACTS,
    "client_connected": CLIENT_FACTS[:3],
    "client_disconnected": CLIENT_FACTS[:4],
    "client_refused": (*CLIENT_FACTS, "unlogged"),
    "connect_timed_out": (*CLIENT_FACTS[:4], "unlogged"),
    "login_refused": (*CLIENT_FACTS[:4], "unlogged"),
    "position_reset": ("client_id", "group"),
    "publish_not_retained": (*CLIENT_FACTS, "topic"),
    "publish_refused": (*CLIENT_FACTS, "topic"),
    **dict.fromkeys(
        (
            "shard_led",
            "shard_stepped_down",
            "shard_stopped",
            "copy_failed",
            "offer_failed",
            "replica_joined",
            "replica_left",
            "shard_behind_trim",
            "shard_copied",
            "shard_waits_for_space",
        ),
        SHARD_FACTS,
    ),
    "user_locked_out": ("user", "address"),
}

MEANINGS: Final = {
    "access_reload_failed": "The broker could not read the users and rights again; the earlier "
    "ones stay in use.",
    "alarm_cleared": "The cause of an alarm is gone.",
    "alarm_raised": "Something is wrong with the machine; `text` says what, and what the broker "
    "does about it.",
    "bridge_connected": "A bridge has connected to its peer for the first time.",
    "bridge_entry_damaged": "A bridge could not read an entry of its spool and moved it to `path`.",
    "bridge_failed": "The connection of a bridge failed; it connects again after a pause.",
    "bridge_forward_failed": "A bridge cannot read or discard messages of its spool; `error` says "
    "why.",
    "bridge_inbound_failed": "The broker could not store messages that a bridge received; the "
    "peer sends them again.",
    "bridge_message_refused": "The peer refused a message; the bridge keeps it in `path`.",
    "bridge_spool_failed": "A bridge could not store messages in its spool.",
    "bridge_spool_full": "The spool of a bridge is full; `policy` says what happens to messages.",
    "bridge_started": "A bridge has started; `waiting` counts the entries in its spool.",
    "bridge_status": "The connection of a bridge was lost or made again; `text` says which.",
    "certificates_reload_failed": "A listener could not read its certificates again; the earlier "
    "ones stay in use.",
    "client_closed": "The broker closed the connection of a client; `reason` and `text` say why.",
    "client_connected": "A client has connected.",
    "client_disconnected": "A client has sent DISCONNECT.",
    "client_refused": "The broker refused a connection before or at CONNECT; `reason` and `text` "
    "say why. After 10 events of an address within 10 seconds, one per 10 seconds; `unlogged` "
    "counts the others.",
    "clock_confirmed": "A command confirmed the clock of the machine after a jump.",
    "clock_save_failed": "The time could not be saved for the next start.",
    "clock_set_back": "The clock of the machine was set back; times that were saved ahead of it "
    "were corrected.",
    "clock_set_back_not_corrected": "The clock of the machine was set back, and saved times could "
    "not be corrected; the broker tries again.",
    "committed_offset_ignored": "A consumer of topic logs had committed an offset in logs that "
    "were dropped since; the offset does not count.",
    "compaction_failed": "Compaction in the background failed; it is tried again.",
    "connect_timed_out": "A connection sent no CONNECT within `limits.connect_timeout` and was "
    "closed. After 10 events of an address within 10 seconds, one per 10 seconds; `unlogged` "
    "counts the others.",
    "connections_refused": "A limit of connections was reached; `count` connections were refused "
    "since the last event.",
    "control_socket_failed": "The broker runs without a control socket; commands that ask the "
    "running broker do not work.",
    "data_directory_open": "Every user of the machine can enter the data directory.",
    "external_rows_not_retained": "Rows that Spark or Flight stored with the retain flag could "
    "not be retained.",
    "flight_call_failed": "A Flight call ended with an error, which the caller has received.",
    "flight_calls_abandoned": "The broker stopped while Flight calls were still running.",
    "flight_listening": "The Flight server accepts connections.",
    "flight_socket_path_too_long": "The data directory has a path that is too long for the local "
    "Flight socket.",
    "foreign_files_ignored": "A slab directory has files that are not part of the store; the "
    "store leaves them as they are.",
    "hook_failed": "The access hook raised an error or returned a wrong type, so the broker "
    "refused the client.",
    "internal_error": "A bug in Siltstone ended one connection or one operation; please report "
    "the traceback.",
    "listening": "A listener accepts connections.",
    "login_refused": "A login failed; at most one event per second, `unlogged` counts the others.",
    "micro_batch_planned": "Spark has planned a micro-batch; `plan` says how much it reads.",
    "more_sessions_busy": "More sessions are busy than the log lists by name.",
    "open_files_limit_low": "The limit of open files allows fewer connections than a setting.",
    "position_reset": "The database of a saved position was dropped and created again, so the "
    "session or share group starts at the beginning.",
    "publish_not_retained": "The limits of retained messages are reached; the message was stored "
    "and delivered, but not retained.",
    "publish_refused": "Messages of a client were refused; at most one event per 10 seconds, "
    "client and reason. `text` has their number.",
    "publishes_not_stored": "The store refused messages; `count` counts them since the last event.",
    "read_planned": "Spark has planned a batch query; `plan` says how much it reads.",
    "reclaim_failed": "Slabs of delivered messages could not be removed; the broker tries again.",
    "reloaded": "SIGHUP: users, rights and certificates were read again.",
    "tier_job_ended": "The tier job ended; the broker starts it again after `retry_seconds`.",
    "tier_job_started": "The broker has started the tier job.",
    "tier_job_stopped": "The broker has stopped the tier job, because it stops itself.",
    "retained_log_compacted": "The log of retained messages was compacted.",
    "retained_log_compaction_failed": "The log of retained messages could not be compacted; the "
    "broker tries again later.",
    "retained_messages_cleared": "A command cleared retained messages.",
    "retained_rollback_failed": "A retained message that was refused could not be replaced by the "
    "one before it.",
    "session_busy": "An operation on a session takes longer than five seconds; `waits_for` says "
    "what it waits for.",
    "session_dropped": "A command dropped a session.",
    "session_failed": "The state of a session can no longer be saved, so its connection is closed.",
    "session_moved": "A command moved the position of a session.",
    "session_rows_lost": "Retention removed messages before a session received them; `serials` "
    "counts them.",
    "session_save_failed": "The state of a session could not be saved.",
    "sessions_found_connected": "The broker ended without a shutdown while `sessions` clients "
    "were connected.",
    "cluster_certificates_failed": "The new certificates of this site cannot be used; the site "
    "continues with the old ones.",
    "cluster_certificates_replaced": "The site has new certificates: it issued one before the old "
    "one ended, or found new files.",
    "cluster_alarm_cleared": "The cause of an alarm of the cluster is gone.",
    "cluster_alarm_raised": "The cluster has had a problem for some seconds; `kind`, `place` and "
    "`text` say which.",
    "cluster_joined": "This site has reached a majority of its cluster.",
    "cluster_task_failed": "A bug in Siltstone ended a task of the cluster; please report the "
    "traceback.",
    "cluster_waiting": "This site waits for a majority of its cluster; `error` is the last answer.",
    "database_not_of_cluster": "The cluster has no database of this name, or another one, so this "
    "site does not replicate its own.",
    "copy_failed": "A shard could not be copied from another site; this site tries again.",
    "offer_failed": "The files of a shard could not be listed for a site that wants to copy them.",
    "placement_planned": "A shard is to move to other replicas: `replicas`.",
    "placement_reached": "The transition of a shard to other replicas has ended.",
    "settings_without_effect": "Settings configure a part of the broker that is off, so they do "
    "nothing; `remedy` says how to turn it on.",
    "shard_handed_over": "The leader of a shard asks another site to lead it.",
    "site_changed": "An operator has changed the role of a site.",
    "site_left": "A site that leaves has no replica any more: it is an observer now.",
    "replica_joined": "A site has caught up with the in-sync sites of a shard and is one of them "
    "now.",
    "replica_left": "A site was away for `cluster.away_after`, or was 512 MiB behind, so the "
    "shared log no longer keeps messages for it.",
    "log_gap": "A message of a shared log is missing or damaged; the site reads again.",
    "log_trimmed": "Messages that all in-sync sites have synced were removed from a shared log.",
    "log_unreachable": "A shared log cannot be read now; the site tries again.",
    "nats_ended": "The NATS server of this site has ended; it is started again.",
    "nats_found": "The NATS server of an earlier start still runs, and this site uses it.",
    "nats_started": "This site has started its NATS server.",
    "nats_unsafe": "A NATS server of the user could lose what is acknowledged; `error` says which "
    "one and why. Rows wait where this site leads.",
    "nats_safe": "The NATS servers of the user have safe settings again.",
    "nats_without_space": "The NATS server of this site found no space on the disk and keeps no "
    "shared logs. The site restarts it when 16 MiB are free.",
    "mark_waits_for_space": "The disk has no space for the position of this site in a shared log. "
    "The site continues, and another site is to lead.",
    "shard_behind_trim": "The shared log no longer has the next messages for this site, so the "
    "site copies the shard from another site.",
    "shard_copied": "This site has copied a shard from another one, and continues from there.",
    "shard_lost_rows": "The files of a shard have fewer rows than this site had synced. It reads "
    "the shared log from the beginning, or copies from another site.",
    "shard_repairs": "This site replaces damaged segments by those of another site.",
    "scrub_failed": "The check of sealed segments failed; it is tried again.",
    "database_dropped": "A key-value database was dropped in the cluster, and this site has "
    "deleted its copy.",
    "drop_failed": "This site could not delete its copy of a database that was dropped in the "
    "cluster; it tries again.",
    "map_damaged": "The check in the background found a key-value shard that cannot be read.",
    "map_differs": "The check in the background found a key-value shard that is not that of most "
    "sites.",
    "map_replaced": "This site deletes its copy of a key-value database, because it is damaged, "
    "and copies it from the other sites.",
    "segment_damaged": "The check in the background found a sealed segment that cannot be read.",
    "segment_differs": "The check in the background found a segment whose rows are not those of "
    "most sites.",
    "segments_undecided": "The copies of a segment, or of a key-value shard (`map`), differ or "
    "cannot be read, and no majority says which one is right. Nothing is changed: compare the "
    "sites.",
    "shard_led": "This site leads a replicated shard from now on.",
    "shard_stepped_down": "This site does not lead a replicated shard any more.",
    "shard_stopped": "A site stopped replicating a shard, because its log contains a message that "
    "an intact log cannot contain; an operator must decide.",
    "shard_waits_for_space": "The disk has no space for a row of another site; the shard reads no "
    "further until there is space.",
    "shard_failed": "A bug in Siltstone ended the writer thread of a shard; please report the "
    "traceback.",
    "shard_upkeep_failed": "A periodic sync, rotation or removal of a shard failed; it is tried "
    "again.",
    "share_group_dropped": "A command dropped a share group.",
    "share_group_moved": "A command moved the position of a share group.",
    "share_group_read_failed": "The rows of a share group cannot be read, so its members receive "
    "none.",
    "share_group_rows_lost": "Retention removed messages before a share group received them; "
    "`serials` counts them.",
    "share_group_save_failed": "The state of a share group could not be saved.",
    "segment_compacted": "Small frames of a sealed segment were rewritten as large ones; the rows "
    "are the same.",
    "segment_not_compacted": "A segment cannot be compacted and stays as it is; `error` says why.",
    "slab_dropped": "A slab was removed; `why` is `age`, `size`, `delivered` or `command`.",
    "slab_recovered": "The store repaired a slab after a crash.",
    "snapshot_cut_not_quiet": "Messages were stored while a snapshot of the store began, so its "
    "databases may differ by some of them.",
    "snapshot_damaged": "A snapshot is damaged and was moved to `moved_to`; an older one is tried.",
    "snapshot_failed": "A snapshot could not be written; the one before it stays.",
    "snapshot_link_broken": "The link to the newest snapshot names a file that does not exist.",
    "snapshot_loaded": "The broker has loaded its state from a snapshot; a warning if a newer one "
    "was damaged.",
    "snapshot_missing": "The newest snapshot does not exist, so the broker loads an older one.",
    "snapshot_not_found": "The broker starts without a snapshot, with an empty state.",
    "snapshot_payloads_on_disk": "The snapshot exceeds `snapshot.memory_max`, so some messages or "
    "their payloads stay on disk until they are sent.",
    "snapshot_prune_failed": "Old snapshots could not be removed.",
    "snapshot_written": "A snapshot is complete and synced.",
    "starting": "The broker starts.",
    "stop_incomplete": "The broker stopped before everything was on disk.",
    "stopped": "The broker has stopped.",
    "stopping": "The broker has begun to stop.",
    "storage_settings_fixed": "`[storage]` has settings that cannot change after the database was "
    "created.",
    "storage_settings_ignored": "`[storage]` differs from the settings of the existing database, "
    "which stay in use; `command` changes them.",
    "store_close_failed": "The store could not be closed after a failure.",
    "store_managed": "A command or a program changed the store: a database, its settings or its "
    "slabs.",
    "store_failed": "The store has failed, for example a sync, and the broker stops.",
    "times_restarted": "A command let new rows of a database have the time of the clock again.",
    "topic_logs_damaged": "The topic logs are damaged, so the broker runs without them.",
    "topiclog_connections_refused": "`topiclog.connections_max` is reached, so a connection was "
    "closed.",
    "topiclog_idle_connection_closed": "A topic log connection was idle for longer than "
    "`topiclog.idle_timeout`.",
    "topiclog_protocol_error": "A topic log client broke the protocol and was closed.",
    "topiclog_send_too_slow": "The body of a SEND arrived too slowly; the connection was closed.",
    "topiclog_space_not_released": "The space of a SEND that was cut off could not be released; "
    "no data is affected.",
    "user_locked_out": "A user has failed to log in too often from an address and is locked out "
    "there for `seconds`.",
    "waiting_lost": "Waiting messages of a session could not be read from disk and were dropped, "
    "because later messages needed their room.",
    "will_lost": "The payload of a will message could not be read from disk, so the will is not "
    "published.",
    "will_not_retained": "A will message could not be retained; it was stored and delivered.",
}

INTRODUCTION: Final = """\
# Log events

`tools/log_events.py` generates this page.

The broker writes its log to stderr, one line for each event: time, level, event, facts.

```text
2026-01-31T12:00:00.123Z info    client_connected client_id=c1 address=127.0.0.1:50000
```

With `log.format = "json"` each line is an object: `time`, `level`, `event`, and one field for each
fact. An internal error adds the field `traceback`.

The name of an event is stable. Match the name, not the text of a fact. A fact can be absent where
it does not apply. Lines of libraries have a fact `logger`, and their text as the event.

| Event | Level | Meaning | Facts |
|---|---|---|---|
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A call that logs an event; the event is "" if the call only passes one on."""

    module: str
    event: str
    levels: list[str]
    facts: list[str]


def sites() -> Iterator[Site]:
    """Yield every call that logs, once for each event that it names."""
    for path in sorted(SOURCE.rglob("*.py")):
        module = path.relative_to(SOURCE).as_posix()
        for node in ast.walk(ast.parse(path.read_text("utf-8"), str(path))):
            if isinstance(node, ast.Call):
                yield from _sites_of(node, module)


def page() -> str:
    """Return the text of the page. Raises: KeyError, for an event without a meaning."""
    levels: dict[str, list[str]] = {}
    facts: dict[str, list[str]] = {}
    for site in sites():
        if site.event:
            levels.setdefault(site.event, []).extend(site.levels)
            facts.setdefault(site.event, []).extend(site.facts)
    lines = [
        f"| `{event}` | {_listed(levels[event])} | {MEANINGS[event]} "
        f"| {_listed([f'`{fact}`' for fact in (*facts[event], *MORE_FACTS.get(event, ()))])} |\n"
        for event in sorted(levels)
    ]
    return INTRODUCTION + "".join(lines)


def _sites_of(call: ast.Call, module: str) -> Iterator[Site]:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ast.unparse(call.func)
    if name in LOGGING and len(call.args) > LOGGING[name][1]:
        level, event = (call.args[index] for index in LOGGING[name])
        named = [node.attr for node in ast.walk(level) if isinstance(node, ast.Attribute)]
        levels = [name.lower() for name in named if name.isupper()]
        if not levels and ast.unparse(level) != "level":
            # Another function of this name.
            return
    elif name in METHODS and ast.unparse(call.func).startswith("_LOG."):
        event, levels = call.args[0], [METHODS[name]]
    elif name == PASSES_ON.get(module):
        event, levels = call.args[0], ["warning"]
    else:
        return
    facts = [each.arg for each in call.keywords if each.arg not in {None, "exc_info", "extra"}]
    # extra={"facts": {"name": value}} is used for an event with a traceback.
    for keyword in call.keywords:
        if keyword.arg == "extra":
            facts += [text for text in _texts(keyword.value) if text != "facts"]
    for text in _texts(event) or [""]:
        yield Site(module=module, event=text, levels=levels, facts=[each or "" for each in facts])


def _texts(node: ast.expr) -> list[str]:
    """Return the literal texts in an expression, such as both of a conditional."""
    constants = [each for each in ast.walk(node) if isinstance(each, ast.Constant)]
    return [each.value for each in constants if isinstance(each.value, str)]


def _listed(names: list[str]) -> str:
    return ", ".join(dict.fromkeys(names))


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
