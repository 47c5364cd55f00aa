"""Subjects of the form comparison that store: keys, structure, frames, snapshots, commits."""

from __future__ import annotations

from functools import partial
from random import Random
from struct import pack
from typing import Any

from crc32c import crc32c

from siltstone.rows.stored import StoredBatch, rows_by_name, rows_by_time
from siltstone.snapshot.format.records import (
    Handshakes,
    QueuedMessage,
    Record,
    RetainedMessage,
    SessionState,
    SubscriptionState,
    WaitingWill,
)
from siltstone.store.feed.rows.committed import committed_batch
from siltstone.store.feed.rows.decode import load_parts, serials_of, streams_of
from siltstone.store.kv import keys as kv_keys
from siltstone.store.log.read.frame_rows import FrameRows
from siltstone.store.log.read.pieces import Piece
from siltstone.store.log.write.frame_builder import Call, FrameBuilder
from siltstone.store.segment.body import unpack_rows
from siltstone.store.segment.frame import (
    PACKED_ROWS,
    PACKED_ROWS_MAX,
    PLAIN,
    PLAIN_ROWS,
    ZSTD,
    count_whole,
    crc_matches,
    decode_header,
    find_frames,
    head_matches,
)
from siltstone.store.slab.manifest import SlabId
from siltstone.store.tx.commit.conflicts import ReadRange, RecentWrites
from siltstone.topic.grammar import TopicFilter
from siltstone.topic.matcher import Matcher
from siltstone.topic.structure import Structure
from tests.support.form_packets import attempt, changed
from tests.support.frames import (
    NOW_US,
    SEED,
    built_frame,
    frame_bytes,
    header_fields,
    packed_frame,
    rows_in,
    view_of,
)
from tests.support.row_batches import row_batch
from tests.support.snapshots import bytes_of, opened, records_in
from tests.support.tx_builders import World
from tests.support.tx_model import held

EDGES = (0, 1, 2, 255, 2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -1)
WORDS = (b"a", b"b", b"c", b"d", b"", b"$x", "é".encode())
FILTERS = ("#", "a/#", "+/b", "a/+", "a", "a/b", "+/+", "b/#", "$x/#")


def topic(rng: Random) -> bytes:
    return b"/".join(rng.choice(WORDS) for _ in range(rng.randrange(1, 4))) or b"a"


def keys(rng: Random) -> Any:
    number, time_us, timed = rng.choice(EDGES), rng.choice(EDGES), rng.random() < 0.5
    prefix = attempt(kv_keys.row_prefix, number, topic(rng))
    key = prefix if isinstance(prefix, bytes) else rng.randbytes(rng.randrange(30))
    found = attempt(kv_keys.row_key, key, time_us, timed)
    key = changed(rng, found) if isinstance(found, bytes) else key
    ranges = [
        attempt(kv_keys.times_of_topic, key, rng.choice(EDGES), rng.choice(EDGES), timed),
        attempt(kv_keys.rows_of_stream, number, [topic(rng)] * rng.randrange(3)),
    ]
    return (
        prefix,
        found,
        kv_keys.stream_of(key),
        kv_keys.place_of(key, timed),
        kv_keys.varying_of(key, timed),
        kv_keys.time_of(key, timed),
        kv_keys.after_topic(key, timed),
        [
            (each.start, each.stop) if isinstance(each, kv_keys.KeyRange) else each
            for each in ranges
        ],
        attempt(kv_keys.encode_state, number, time_us),
        kv_keys.serial_in(key),
        kv_keys.timestamp_in(key),
    )


def structure(rng: Random) -> Any:
    made = Structure([rng.choice((-1, 0, 1, 2, 3)) for _ in range(rng.randrange(1, 3))])
    found: list[Any] = []
    for _ in range(rng.randrange(25)):
        name = topic(rng)
        match rng.randrange(6):
            case 0:
                place = made.lookup(name)
                found.append(None if place is None else (place.stream.id, place.varying))
            case 1:
                levels = list(TopicFilter.parse(rng.choice(FILTERS)).levels)
                found += [(each.stream.id, each.constraints) for each in made.match(levels)]
            case 2:
                found.append(attempt(lambda: made.insert_pattern(rng.choice((b"a/+", b"+/b"))).id))
            case _:
                place = made.learn(name)
                found.append((place.stream.id, place.varying, made.find_plain(name) is None))
    found.append(made.take_pending() if rng.random() < 0.5 else b"")
    exported = made.export()
    other = Structure([1])
    found.append(attempt(lambda: [each.id for each in other.apply(changed(rng, exported))]))
    heir = made.inherit([2])
    found += [
        (each.id, each.pattern, each.levels, each.varying_count, each.special)
        for each in [*made.streams(), *heir.streams(), *other.streams()]
    ]
    return found, exported


def matcher(rng: Random) -> Any:
    made = Matcher()
    found: list[Any] = []
    for _ in range(rng.randrange(30)):
        levels = TopicFilter.parse(rng.choice(FILTERS)).levels
        match rng.randrange(4):
            case 0:
                found.append(made.remove(levels, rng.randrange(3)))
            case 1:
                found.append(made.match(topic(rng)))
            case _:
                made.put(levels, rng.randrange(3), rng.randrange(100))
    return found, len(made)


def _call(rng: Random) -> Call:
    count = rng.choice((1, 2, 5, 40))
    batch = row_batch(
        [topic(rng) for _ in range(count)], [rng.randbytes(3) for _ in range(count)], b"p"
    )
    if rng.random() < 0.3:
        batch.publishers = [rng.choice((b"", b"x", b"y")) for _ in range(count)]
    if rng.random() < 0.3:
        batch.flags = [rng.randrange(7) for _ in range(count)]
    if rng.random() < 0.3:
        batch.properties = [rng.choice((b"", b"\3\0\1t")) for _ in range(count)]
    batch.measure()
    return Call(batch)


def _facts(batch: StoredBatch) -> Any:
    return (
        batch.serials,
        batch.timestamps,
        batch.topics,
        batch.names,
        batch.values,
        batch.publishers,
        batch.flags,
        batch.properties,
    )


def loops(rng: Random) -> Any:
    """Walk bytes that begin as frames do, and check ranges of them as frames."""
    words = [rng.randrange(-(2**63), 2**63) for _ in range(rng.randrange(64))]
    step = rng.choice((8, 9, 10))
    for place in range(1, len(words), step):
        odd = rng.random() < 0.1
        length = rng.choice((4096, 2**31, 2**32 - 8, rng.randrange(2**32))) if odd else 8 * step
        kind = rng.choice((rng.randrange(2**16), PACKED_ROWS, PLAIN_ROWS, PLAIN_ROWS))
        words[place] = (rng.randrange(2**15) << 48) | (kind << 32) | length
        if place + 2 < len(words):
            words[place + 2] = rng.choice((0, 1, 2048, 2049, 2**32 - 1))
    data = pack(f"<{len(words)}q", *words)
    view, most, small = memoryview(data), rng.choice((0, 1, 100)), rng.random() < 0.5
    limit = rng.choice((len(data), len(data), rng.randrange(len(data) + 1)))
    found = attempt(partial(find_frames, small=small), view, 0, limit, most)
    ends = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randrange(5)))
    starts = [0, *ends[:-1]][: len(ends)]
    sums = [crc32c(data[start + 8 : end], SEED) for start, end in zip(starts, ends, strict=True)]
    if sums and rng.random() < 0.5:
        sums[rng.randrange(len(sums))] ^= 1
    checked = [rng.randrange(2) for _ in sums] if rng.random() < 0.5 else []
    return found, attempt(count_whole, view, starts, ends, sums, checked, SEED)


def frames(rng: Random) -> Any:
    """Build and encode a frame, read it in every way, and again with changed bytes."""
    learned = Structure([rng.choice((0, 1, 3))])
    builder = FrameBuilder(learned, rng.choice((1, 100)))
    calls = [_call(rng) for _ in range(rng.randrange(1, 4))]
    sizes = [call.batch.size_bytes for call in calls]
    built = attempt(builder.build, calls, NOW_US + rng.choice((0, 2**31, 2**40)))
    if isinstance(built, str | tuple) or not built.row_count:
        return sizes, [attempt(str, call.error) for call in calls]
    serial = rng.choice((0, 1, 2**32, 2**62))
    frame = built_frame(built, serial=serial, compression=rng.choice((PLAIN, ZSTD)))
    data = frame_bytes(frame)
    view = view_of(data)
    pieces: list[Piece | FrameRows] = [
        Piece(
            slab=SlabId(shard=0, generation=1),
            stream=found,
            frame=view,
            start=first,
            stop=first + count,
        )
        for stream_id, first, count, _, _ in view.directory()
        if (found := learned.stream(stream_id)) is not None
    ]
    live = committed_batch(0, 1, serial, built)
    batch = StoredBatch(0, 1, serial, serial + built.row_count, built.row_count)
    batch.serials = serials_of(pieces)
    batch.loader = partial(load_parts, pieces)
    for each in (live, batch):
        each.load()
        each.number_rows()
    broken = memoryview(changed(rng, data))
    short, odd = b"", b""
    if built.row_count <= PACKED_ROWS_MAX:
        short = frame_bytes(packed_frame(built, serial=serial))
        odd = changed(rng, short)

    def unpacked() -> Any:
        header = decode_header(memoryview(odd), 0, len(odd))
        return None if header is None else unpack_rows(memoryview(odd), 0, header)

    def decoded() -> Any:
        header = decode_header(broken, 0, len(broken))
        if header is None:
            return None
        whole = crc_matches(broken, 0, header, SEED), head_matches(broken, 0, header, SEED)
        return header_fields(header), whole

    return (
        sizes,
        data,
        frame.directory,
        _facts(live),
        _facts(batch),
        streams_of(pieces),
        rows_by_name(live, range(len(live.names))),
        rows_by_time(live, None),
        rows_in(view),
        attempt(decoded),
        short,
        rows_in(view_of(short)) if short else None,
        attempt(unpacked),
    )


def _records(rng: Random) -> list[Record]:
    def message() -> dict[str, Any]:
        return {
            "topic": topic(rng),
            "payload": rng.choice((b"", b"a", b"b" * 3000, rng.randbytes(9))),
            "flags": rng.randrange(8),
            "properties": rng.choice((b"", b"\3\0\1t")),
        }

    def when() -> int:
        return rng.choice((0, 1, -1, 2**31, 2**62, -(2**63), 2**63 - 1))

    records: list[Record] = [
        RetainedMessage(**message(), stored_us=when(), expires_us=when(), publisher=b"p")
        for _ in range(rng.randrange(3))
    ]
    for number in range(rng.randrange(3)):
        records.append(
            SessionState(
                client_id=f"é{number}", user="", expiry_seconds=2**32 - 1, last_active_us=when()
            )
        )
        records += [
            QueuedMessage(**message(), expires_us=when(), packet_id=rng.randrange(65_536))
            for _ in range(rng.randrange(3))
        ]
        records.append(
            SubscriptionState(
                filter=rng.choice(FILTERS),
                qos=rng.randrange(3),
                no_local=rng.random() < 0.5,
                retain_as_published=rng.random() < 0.5,
                retain_handling=rng.randrange(3),
                identifier=rng.choice((0, 1, 268_435_455)),
            )
        )
        ids = tuple(rng.randrange(1, 65_536) for _ in range(rng.randrange(3)))
        records.append(Handshakes(received=ids, released=ids[:1]))
        records.append(WaitingWill(**message(), due_us=when()))
    return records


def snapshot(rng: Random) -> Any:
    data = attempt(bytes_of, _records(rng))
    if not isinstance(data, bytes):
        return data
    broken = changed(rng, data)
    return data, records_in(opened(data)), attempt(lambda: records_in(opened(broken)))


def conflicts(rng: Random) -> Any:
    writes = RecentWrites(rng.choice((2, 8, 100)), 10.0, 0, 0.0)
    found: list[Any] = []
    serial = 0
    for step in range(rng.randrange(1, 30)):
        time_us = rng.choice(EDGES[:8])
        match rng.randrange(5):
            case 0:
                writes.turn(serial, float(step))
            case 1:
                parsed = TopicFilter.parse(rng.choice(FILTERS))
                exact = rng.random() < 0.5
                read = ReadRange(
                    topic(rng) if exact else b"",
                    None if exact else parsed,
                    time_us,
                    rng.choice(EDGES[:9]),
                )
                since = rng.randrange(serial + 2)
                found += [writes.conflicting(read, since), writes.topics_of(parsed, since)]
                found.append(writes.times_of(topic(rng), since))
            case 2:
                serial += 1
                writes.begin(serial)
                writes.note_range(topic(rng), time_us, rng.choice(EDGES[:9]))
            case _:
                serial += 1
                writes.begin(serial)
                writes.note(topic(rng), time_us)
    return found, writes.floor, len(writes)


def _operate(rng: Random, tx: Any, timed: bool) -> Any:
    name = topic(rng).decode()
    times = {"time_us": rng.choice((1, 5, 10))} if timed and rng.random() < 0.7 else {}
    match rng.randrange(8):
        case 0:
            found = tx.read(rng.choice(FILTERS), rng.choice((0, 5)), rng.choice((None, 8)))
            return [(row.topic, row.timestamp_us, row.value) for row in found]
        case 1:
            return tx.get(name, **times)
        case 2:
            return tx.delete(rng.choice(FILTERS), rng.choice((0, 5)), rng.choice((None, 8)))
        case 3:
            return tx.require_present(name, **times)
        case 4:
            return tx.require_absent(name, **times)
        case 5:
            return tx.add(name, rng.choice((1, -1, 2**62)))
        case _:
            return tx.write(name, rng.randbytes(2), **times)


def _tend(rng: Random, world: World) -> Any:
    """Do anything to a database besides transactions."""
    database = world.database
    match rng.randrange(5):
        case 0:
            database.seal()
        case 1:
            database.drop_slab(rng.choice([record.id for record in database.slabs()]))
        case 2:
            database.configure(max_items=rng.choice((1, 1000)), topic_cache=rng.choice((2, 9)))
        case 3:
            database.enforce_retention()
        case _:
            return database.outcome("one", shard=0), str(database.failure())
    return [(record.id, record.state) for record in database.slabs()]


def commits(rng: Random) -> Any:
    """Run overlapping transactions, commit some together, and close and open at random."""
    timed = rng.random() < 0.5
    found: list[Any] = []
    feed_bytes = rng.choice((0, 1, 100, 1 << 20))
    with World(timed=timed, thresholds=(rng.choice((0, 2)),), feed_bytes=feed_bytes) as world:
        for _ in range(rng.randrange(1, 5)):
            open_ones = [
                world.database.transaction(id=rng.choice((None, None, "one")))
                for _ in range(rng.randrange(1, 4))
            ]
            found += [
                attempt(_operate, rng, rng.choice(open_ones), timed)
                for _ in range(rng.randrange(8))
            ]
            with held(world.database):
                tickets = [attempt(tx.submit) for tx in open_ones]
            for tx, ticket in zip(open_ones, tickets, strict=True):
                if hasattr(ticket, "wait"):
                    found.append(attempt(lambda ticket=ticket: ticket.wait(60) is None))
                    found.append(attempt(lambda tx=tx: (tx.serial, tx.duplicate)))
                else:
                    found.append(ticket)
            if rng.random() < 0.5:
                found.append(attempt(_tend, rng, world))
            if rng.random() < 0.2:
                world.reopen()
            world.clock.advance(rng.choice((0.0, 0.5)))
        found.append(world.rows())
        if feed_bytes:
            changes = world.memory.view("changes").items(b"", b"\xff", 1000)
            found += [changes, world.database.end_position().serials]
    return found
