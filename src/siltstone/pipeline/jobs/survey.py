"""The survey of a batch: its topics without a rule, and the rules that they get.

The first payloads of each new topic say which topics are of one kind. Rules that the new ones
cover are left out; the rows of their tables then move.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from siltstone.pipeline.lake.fields import Field, extended, wider
from siltstone.pipeline.lake.names import level_columns, table_name
from siltstone.pipeline.lake.payloads import Decoder, find_fields, likely_decoder
from siltstone.pipeline.lake.rules import Partition, Rules, TableRule, in_order
from siltstone.pipeline.lake.tables.structures import PayloadKind, find_structures

# The number of payloads of a topic, and of a structure, that are looked at.
TOPIC_SAMPLE: Final = 20
RULE_SAMPLE: Final = 200
# A word that no topic has, in the place of a level that varies.
_ANY: Final = "\x00"
Samples = dict[str, list[bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Customs:
    """The inputs for new rules: decoders by topic filter, the partition, names that are not
    free.
    """

    decode: Mapping[str, Decoder]
    partition: Partition
    taken: Sequence[str] = ()

    def decoder(self, topic: str, payloads: Sequence[bytes]) -> Decoder:
        """Return the decoder of the payloads of a topic."""
        for text, decoder in self.decode.items():
            if Rules([TableRule(filter=text, table="sample")]).has(topic):
                return decoder
        return likely_decoder(payloads)


def survey(batches: Iterable[pa.RecordBatch], known: Rules, customs: Customs) -> Rules:
    """Return rules for all topics of some rows, given their topics and payloads."""
    rules = known
    for batch in batches:
        samples = _samples(batch, rules)
        rules = _chosen(rules, samples, customs)
        new = {topic: payloads for topic, payloads in samples.items() if not rules.has(topic)}
        if new:
            rules = learned(rules, new, customs)
    return rules


def _chosen(rules: Rules, samples: Samples, customs: Customs) -> Rules:
    """Return the rules with decoders where a user left the choice, by their first payloads."""
    fed: dict[str, tuple[str, list[bytes]]] = {}
    for topic, payloads in samples.items():
        rule = rules.find(topic)
        if rule.decode == "auto":
            fed.setdefault(rule.filter, (topic, []))[1].extend(payloads)
    return rules.replaced(
        _with_samples(replace(rule, decode=customs.decoder(topic, payloads)), payloads)
        for rule in rules.rules
        if rule.filter in fed
        for topic, payloads in [fed[rule.filter]]
    )


def _is_known(rules: Rules, topic: str) -> bool:
    return rules.has(topic) and rules.find(topic).decode != "auto"


def _samples(batch: pa.RecordBatch, rules: Rules) -> Samples:
    """Return the first payloads of each topic without a rule or a decoder."""
    topics = batch.column("topic").dictionary_encode()
    names = topics.dictionary.to_pylist()
    new = {number: list[bytes]() for number, name in enumerate(names) if not _is_known(rules, name)}
    if not new:
        return {}
    payloads = batch.column("payload")
    missing = len(new)
    for place, number in enumerate(topics.indices.to_pylist()):
        sample = new.get(number)
        if sample is not None and len(sample) < TOPIC_SAMPLE:
            sample.append(payloads[place].as_py())
            missing -= len(sample) == TOPIC_SAMPLE
            if not missing:
                break
    return {names[number]: sample for number, sample in new.items()}


def learned(known: Rules, samples: Samples, customs: Customs) -> Rules:
    """Return rules that also cover some new topics; learned rules that they cover are left out."""
    own = {rule.filter: rule for rule in known.rules if rule.learned}
    kinds = {text: _kind(rule) for text, rule in own.items()}
    for topic, payloads in samples.items():
        decoder = customs.decoder(topic, payloads)
        paths = () if decoder in ("text", "raw") else find_fields(payloads, decoder)
        kinds[topic] = PayloadKind(decode=decoder, fields=frozenset(path for path, _ in paths))
    patterns = find_structures(kinds)
    places = Rules(in_order([TableRule(filter=text, table="", learned=True) for text in patterns]))
    fed: dict[str, list[bytes]] = {text: [] for text in patterns}
    begun: dict[str, str] = {}
    for topic, payloads in samples.items():
        text = places.find(topic).filter
        fed[text] += payloads[: RULE_SAMPLE - len(fed[text])]
        begun[text] = _common_start(begun.get(text, topic), topic)
    joined: dict[str, list[TableRule]] = {text: [] for text in patterns}
    for text, rule in own.items():
        joined[places.find(text.replace("+", _ANY)).filter].append(rule)
    names = [*customs.taken, *(rule.table for rule in known.rules)]
    made: list[TableRule] = []
    for text, kind in patterns.items():
        rule = own.get(text) or _new_rule(
            text, kind, joined[text], names, customs, begun.get(text, "")
        )
        names.append(rule.table)
        made.append(_with_samples(rule, fed[text]))
    return Rules(in_order([*(rule for rule in known.rules if not rule.learned), *made]))


def _common_start(one: str, other: str) -> str:
    """Return the characters that two words begin with."""
    size = next(
        (place for place, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]),
        min(len(one), len(other)),
    )
    return one[:size]


def _kind(rule: TableRule) -> PayloadKind:
    return PayloadKind(decode=rule.decode, fields=frozenset(field.path for field in rule.fields))


def _new_rule(
    text: str,
    kind: PayloadKind,
    joined: Sequence[TableRule],
    names: Sequence[str],
    customs: Customs,
    begun: str,
) -> TableRule:
    """Return a rule for a structure; `begun` is the common start of its new topics."""
    levels = text.split("/")
    # A structure that varies at all levels has no word for its name.
    named = levels if levels.count("+") < len(levels) else [begun.rstrip("0123456789"), *levels]
    partitions = {rule.partition for rule in joined} or {customs.partition}
    drifts = {rule.drift for rule in joined}
    rule = TableRule(
        filter=text,
        table=table_name(named, names),
        levels=tuple(level_columns(levels)),
        decode=kind.decode,
        partition="hour" if "hour" in partitions else "day",
        learned=True,
        # A user may have chosen it for the rules that this one replaces.
        drift=drifts.pop() if len(drifts) == 1 else "rescue",
    )
    return replace(rule, fields=_joined_fields(rule, joined)) if joined else rule


def _joined_fields(rule: TableRule, joined: Iterable[TableRule]) -> tuple[Field, ...]:
    """Return the fields of all rules; a field with different types holds the values of all."""
    kinds: dict[tuple[str, ...], str] = {}
    for old in joined:
        for field in old.fields:
            kind = kinds.setdefault(field.path, field.kind)
            if kind != field.kind:
                widened = {wider(kind, field.kind), wider(field.kind, kind)}
                kinds[field.path] = widened.pop() if len(widened) == 1 else "string"
    return extended((), kinds.items(), rule.taken())


def _with_samples(rule: TableRule, payloads: Sequence[bytes]) -> TableRule:
    if not payloads or rule.decode in ("text", "raw"):
        return rule
    found = find_fields(payloads, rule.decode)
    return replace(rule, fields=extended(rule.fields, found, rule.taken()))
