from __future__ import annotations

import struct

import pytest

from siltstone.errors import InvalidTopicError, UsageError
from siltstone.topic.edges import END, LITERAL, PLUS, ROOT_ID, SPECIAL_ROOT_ID, edge_id
from siltstone.topic.structure import NEVER, Structure, TrieNode
from tests.support.learned import topic_of


def place(structure: Structure, topic: bytes) -> tuple[bytes, bytes]:
    placement = structure.learn(topic)
    return placement.stream.pattern, placement.varying


def patterns(structure: Structure) -> list[bytes]:
    return [stream.pattern for stream in structure.streams()]


def matched(structure: Structure, filter_text: bytes) -> dict[bytes, list[bytes | None]]:
    matches = structure.match(filter_text.split(b"/"))
    result = {match.stream.pattern: match.constraints for match in matches}
    assert len(result) == len(matches)
    return result


def edges(*items: tuple[int, int, bytes]) -> bytes:
    encoded = struct.pack("<I", len(items))
    for parent_id, kind, word in items:
        encoded += struct.pack("<QBH", parent_id, kind, len(word)) + word
    return encoded


A_ID = edge_id(ROOT_ID, LITERAL, b"a")


class TestLearning:
    def test_the_word_after_the_threshold_makes_its_level_vary(self) -> None:
        structure = Structure([100, 2])
        placed = [place(structure, b"metrics/%s/cpu" % host) for host in (b"a", b"b", b"c", b"d")]
        assert placed == [
            (b"metrics/a/cpu", b""),
            (b"metrics/b/cpu", b""),
            (b"metrics/+/cpu", b"c"),
            (b"metrics/+/cpu", b"d"),
        ]
        assert list(structure.root.children) == [b"metrics"]
        assert list(structure.root.children[b"metrics"].children) == [b"a", b"b"]

    def test_words_seen_before_their_level_varied_keep_their_own_stream(self) -> None:
        structure = Structure([NEVER, 1])
        first = structure.learn(b"m/a")
        structure.learn(b"m/b")
        again = structure.learn(b"m/a")
        assert (again.stream is first.stream, again.varying) == (True, b"")

    def test_each_node_counts_its_own_words(self) -> None:
        structure = Structure([NEVER, 1])
        topics = [b"m/a", b"n/b", b"m/c", b"n/d"]
        assert [place(structure, topic) for topic in topics] == [
            (b"m/a", b""),
            (b"n/b", b""),
            (b"m/+", b"c"),
            (b"n/+", b"d"),
        ]

    def test_ends_are_not_counted_as_words(self) -> None:
        structure = Structure([1])
        assert place(structure, b"a") == (b"a", b"")
        assert place(structure, b"a/b") == (b"a/b", b"")
        assert place(structure, b"a/c") == (b"a/+", b"c")

    def test_threshold_zero_makes_each_level_vary_from_the_start(self) -> None:
        structure = Structure([0])
        assert place(structure, b"a/b") == (b"+/+", b"a/b")
        assert place(structure, b"//") == (b"+/+/+", b"//")
        assert place(structure, b"$a/b") == (b"+/+", b"$a/b")
        assert [stream.special for stream in structure.streams()] == [False, False, True]

    def test_threshold_never_gives_each_topic_its_stream(self) -> None:
        structure = Structure([NEVER])
        topics = [b"m/%d/x" % number for number in range(1000)]
        assert [place(structure, topic) for topic in topics] == [(topic, b"") for topic in topics]

    def test_the_last_threshold_holds_for_all_deeper_levels(self) -> None:
        structure = Structure([NEVER, 0, 1])
        structure.learn(b"a/b/c/d")
        assert place(structure, b"a/x/c/z") == (b"a/+/c/+", b"x/z")
        assert place(structure, b"a/x/y/z") == (b"a/+/+/z", b"x/y")
        assert place(structure, b"a/x/y/d") == (b"a/+/+/+", b"x/y/d")

    @pytest.mark.parametrize("thresholds", [[], [-2], [100, -3]])
    def test_thresholds_that_mean_nothing_are_refused(self, thresholds: list[int]) -> None:
        with pytest.raises(UsageError) as caught:
            Structure(thresholds)
        assert str(caught.value) == (
            "thresholds must be one or more numbers, 0 or above, or -1 for never: "
            f"thresholds={thresholds}"
        )

    def test_empty_levels_are_words(self) -> None:
        structure = Structure([NEVER])
        topics = [b"/", b"/a", b"a/", b"a", b"//"]
        assert [place(structure, topic) for topic in topics] == [(topic, b"") for topic in topics]

    def test_a_varying_empty_level_is_told_from_no_varying_level(self) -> None:
        structure = Structure([NEVER, 0])
        varying = structure.learn(b"a/")
        fixed = structure.learn(b"a")
        assert (varying.varying, varying.stream.varying_count) == (b"", 1)
        assert (fixed.varying, fixed.stream.varying_count) == (b"", 0)
        assert topic_of(varying) == b"a/"
        assert topic_of(fixed) == b"a"

    def test_special_topics_have_a_root_and_a_count_of_their_own(self) -> None:
        structure = Structure([1])
        structure.learn(b"$SYS")
        structure.learn(b"a")
        assert place(structure, b"$other") == (b"+", b"$other")
        assert place(structure, b"b") == (b"+", b"b")
        ids = {stream.id for stream in structure.streams()}
        assert len(ids) == 4

    def test_a_wildcard_that_slipped_through_is_our_mistake(self) -> None:
        with pytest.raises(AssertionError, match="a topic has no wildcard"):
            Structure([NEVER]).learn(b"a/+")

    def test_a_topic_of_65536_levels_is_learned_matched_and_rebuilt(self) -> None:
        structure = Structure([0])
        topic = b"/" * 65_535
        placement = structure.learn(topic)
        assert topic_of(placement) == topic
        assert [match.stream for match in structure.match([b"#"])] == [placement.stream]
        assert structure.inherit([0]).export() == structure.export()


class TestLookup:
    def test_lookup_finds_what_was_learned_and_inserts_nothing(self) -> None:
        structure = Structure([NEVER, 1])
        structure.learn(b"m/a")
        structure.learn(b"m/b")
        before = structure.export()
        found = structure.lookup(b"m/never-seen")
        assert found is not None
        assert (found.stream.pattern, found.varying) == (b"m/+", b"never-seen")
        unknown = [b"m", b"m/a/b", b"x", b"$m/a", b""]
        assert [structure.lookup(topic) for topic in unknown] == [None] * 5
        assert structure.export() == before

    @pytest.mark.parametrize(
        "topic",
        [b"", b"m/+", b"m/#", b"m/a\0", "m/ä".encode(), b"m/\xff", b"m/" + b"x" * 65_534],
    )
    def test_what_needs_a_closer_look_is_not_found_as_plain(self, topic: bytes) -> None:
        structure = Structure([0])
        structure.learn(b"x")
        structure.learn(b"x/y")
        assert structure.find_plain(topic) is None

    def test_a_plain_topic_of_the_greatest_length_is_found(self) -> None:
        structure = Structure([0])
        stream = structure.learn(b"x/y").stream
        assert structure.find_plain(b"m/" + b"x" * 65_533) is stream

    def test_stream_is_found_by_its_id(self) -> None:
        structure = Structure([NEVER])
        stream = structure.learn(b"a/b").stream
        assert structure.stream(stream.id) is stream
        assert structure.stream(stream.id + 1) is None


class TestIds:
    def test_ids_do_not_change_between_releases(self) -> None:
        structure = Structure([100, 0])
        ids = [structure.learn(topic).stream.id for topic in (b"metrics/h1", b"$SYS/x", b"/")]
        assert ids == [
            0xA8445FCE164D6232,
            0xA1FBFD1DCD073F7D,
            0x63BE0D0D438B0BCB,
        ]

    def test_ids_do_not_depend_on_other_topics(self) -> None:
        crowded = Structure([NEVER])
        for number in range(100):
            crowded.learn(b"%d/x" % number)
        assert crowded.learn(b"a/b").stream.id == Structure([NEVER]).learn(b"a/b").stream.id

    def test_of_two_paths_with_one_id_the_later_moves_and_followers_agree(self) -> None:
        moved = edge_id(ROOT_ID, LITERAL, b"a\xff")
        structures = [Structure([NEVER]), Structure([NEVER])]
        for structure in structures:
            # No two words with one 64-bit hash are known, so the ids are taken by hand.
            nodes, streams = structure._nodes, structure._streams  # noqa: SLF001
            nodes[A_ID] = TrieNode(A_ID, structure.root, b"taken")
            streams[edge_id(moved, END, b"")] = structure.learn(b"taken").stream
            structure.take_pending()
        leader, follower = structures
        stream = leader.learn(b"a").stream
        assert leader.root.children[b"a"].id == moved
        assert stream.id == edge_id(moved, END, b"\xff")
        assert [stream.id for stream in follower.apply(leader.take_pending())] == [stream.id]
        assert follower.root.children[b"a"].id == moved


class TestEdges:
    def test_pending_edges_are_encoded_parents_first_and_taken_once(self) -> None:
        structure = Structure([NEVER, 0])
        assert structure.has_pending() is False
        structure.learn(b"a/b")
        assert structure.has_pending() is True
        plus_id = edge_id(A_ID, PLUS, b"")
        expected = edges((ROOT_ID, LITERAL, b"a"), (A_ID, PLUS, b""), (plus_id, END, b""))
        assert structure.take_pending() == expected
        assert structure.has_pending() is False
        structure.learn(b"a/c")
        assert structure.take_pending() == edges()
        structure.learn(b"a")
        assert structure.take_pending() == edges((A_ID, END, b""))
        assert structure.export() == edges(
            (ROOT_ID, LITERAL, b"a"), (A_ID, PLUS, b""), (plus_id, END, b""), (A_ID, END, b"")
        )

    def test_apply_returns_the_new_streams_and_is_idempotent(self) -> None:
        leader = Structure([NEVER, 1])
        for topic in (b"m/a", b"m/b", b"$SYS/x", b"/"):
            leader.learn(topic)
        encoded = leader.take_pending()
        follower = Structure([0])
        applied = [stream.pattern for stream in follower.apply(memoryview(encoded))]
        assert applied == [b"m/a", b"m/+", b"$SYS/x", b"/"]
        assert follower.apply(encoded) == []
        assert follower.has_pending() is False
        assert follower.export() == leader.export()

    def test_a_structure_thrown_away_leaves_no_edge_behind(self) -> None:
        published = Structure([NEVER])
        building = Structure([NEVER])
        building.learn(b"kept")
        published.apply(building.take_pending())
        building.learn(b"lost")
        building.take_pending()
        building = Structure([NEVER])
        building.apply(published.export())
        assert patterns(building) == [b"kept"]
        building.learn(b"lost")
        assert [stream.pattern for stream in published.apply(building.take_pending())] == [b"lost"]

    def test_apply_is_refused_while_own_edges_are_pending(self) -> None:
        structure = Structure([NEVER])
        structure.learn(b"a")
        with pytest.raises(UsageError) as caught:
            structure.apply(edges())
        assert str(caught.value) == (
            "internal error: take the pending edges of this structure before you apply others"
        )

    def test_edges_cut_short_at_any_byte_are_refused(self) -> None:
        leader = Structure([NEVER, 0])
        leader.learn(b"aa/b")
        encoded = leader.take_pending()
        for size in range(len(encoded)):
            with pytest.raises(ValueError, match=f"^edges are cut short: size_bytes={size}$"):
                Structure([NEVER]).apply(encoded[:size])

    @pytest.mark.parametrize(
        ("encoded", "message"),
        [
            (edges() + b"x", "bytes follow the last edge: offset=4"),
            (edges((77, LITERAL, b"a")), "edge starts at an unknown node: parent=77"),
            (edges((1, 3, b"")), "edge has an unknown kind, or ends at a root: parent=1 kind=3"),
            (edges((1, END, b"")), "edge has an unknown kind, or ends at a root: parent=1 kind=2"),
            (edges((1, PLUS, b"a")), "only a literal edge has a word: kind=1 token=b'a'"),
            (edges((1, LITERAL, b"a/b")), "edge has more than one level: token=b'a/b'"),
            (
                edges((1, LITERAL, b"+")),
                (
                    "edge has an invalid topic level: topic must not have the wildcards + and #: "
                    "topic='+'"
                ),
            ),
            (
                edges((ROOT_ID, LITERAL, b"$a")),
                "edge starts at the wrong root: parent=1 token=b'$a'",
            ),
            (
                edges((SPECIAL_ROOT_ID, LITERAL, b"a")),
                "edge starts at the wrong root: parent=2 token=b'a'",
            ),
        ],
    )
    def test_edges_that_make_no_sense_are_refused(self, encoded: bytes, message: str) -> None:
        with pytest.raises(ValueError) as caught:  # noqa: PT011  the whole text is compared
            Structure([NEVER]).apply(encoded)
        assert str(caught.value) == message


class TestInherit:
    def test_only_paths_that_vary_are_inherited_special_ones_too(self) -> None:
        structure = Structure([NEVER, 1])
        for topic in (b"m/a/x", b"m/b/x", b"alone", b"$SYS/a", b"$SYS/b", b"m/b/y"):
            structure.learn(topic)
        heir = structure.inherit([NEVER, 1])
        assert patterns(heir) == [b"$SYS/+", b"m/+/+"]
        assert [stream.special for stream in heir.streams()] == [True, False]
        assert heir.has_pending() is False
        old_ids = {stream.pattern: stream.id for stream in structure.streams()}
        assert [stream.id for stream in heir.streams()] == [
            old_ids[stream.pattern] for stream in heir.streams()
        ]

    def test_a_forgotten_topic_comes_into_the_varying_stream(self) -> None:
        structure = Structure([NEVER, 1])
        structure.learn(b"m/a")
        structure.learn(b"m/b")
        assert place(structure.inherit([NEVER]), b"m/a") == (b"m/+", b"a")

    def test_words_beside_a_varying_level_come_into_the_varying_streams(self) -> None:
        structure = Structure([1, NEVER, 0])
        structure.learn(b"a/b/c")
        structure.learn(b"x/y")
        heir = structure.inherit([NEVER])
        assert patterns(heir) == [b"+/y", b"+/b/+"]
        assert place(heir, b"a/b/d") == (b"+/b/+", b"a/d")
        assert place(heir, b"z/y") == (b"+/y", b"z")

    def test_words_below_several_words_vary_if_together_they_are_too_many(self) -> None:
        structure = Structure([NEVER, 2, 2])
        for topic in (b"m/a/1/x/y", b"m/b/2/x/y", b"m/c/3/x/y"):
            structure.learn(topic)
        for number in range(3):
            structure.learn(b"m/a/1/x/%d" % number)
            structure.learn(b"m/b/2/x/%d" % number)
        assert b"m/+/+/x/+" in patterns(structure.inherit([NEVER, 2, 1]))

    def test_a_plant_with_many_hosts_has_few_streams_in_the_next_generation(self) -> None:
        structure = Structure([100, 10])
        topics = [
            b"metrics/host_%d/cpu/socket/%d/core/%d" % (host, socket, core)
            for host in range(20)
            for socket in range(12)
            for core in range(12)
        ]
        for topic in topics:
            structure.learn(topic)
        assert len(structure.streams()) == 11 * 11 * 11
        heir = structure.inherit([100, 10])
        assert patterns(heir) == [b"metrics/+/cpu/socket/+/core/+"]
        for topic in topics:
            assert heir.learn(topic).stream is heir.streams()[0]

    def test_new_thresholds_hold_for_what_comes_later(self) -> None:
        structure = Structure([NEVER])
        assert patterns(structure.inherit([0])) == []
        structure.insert_pattern(b"m/+")
        heir = structure.inherit([2])
        assert place(heir, b"n/a") == (b"n/a", b"")
        assert place(heir, b"o/a") == (b"+/a", b"o")
        assert place(heir, b"m/a") == (b"m/+", b"a")


class TestPattern:
    def test_a_taught_pattern_takes_its_topics_from_the_first_on(self) -> None:
        structure = Structure([NEVER])
        stream = structure.insert_pattern(b"m/+/cpu")
        assert (stream.pattern, stream.varying_count, stream.special) == (b"m/+/cpu", 1, False)
        placement = structure.learn(b"m/a/cpu")
        assert (placement.stream is stream, placement.varying) == (True, b"a")
        follower = Structure([NEVER])
        assert [new.id for new in follower.apply(structure.take_pending())] == [stream.id]

    def test_teaching_moves_no_topic_that_was_placed(self) -> None:
        structure = Structure([0])
        before = place(structure, b"m/a")
        stream = structure.insert_pattern(b"m/+")
        assert stream.pattern == b"+/+"
        assert place(structure, b"m/a") == before == (b"+/+", b"m/a")

    def test_teaching_beside_known_words_leaves_them_their_streams(self) -> None:
        structure = Structure([NEVER])
        structure.learn(b"m/a")
        structure.insert_pattern(b"m/+")
        structure.insert_pattern(b"m/a")
        assert [place(structure, topic) for topic in (b"m/a", b"m/b")] == [
            (b"m/a", b""),
            (b"m/+", b"b"),
        ]

    def test_a_leading_plus_may_be_taught_under_either_root(self) -> None:
        structure = Structure([NEVER])
        structure.insert_pattern(b"$x")
        structure.insert_pattern(b"+/a")
        structure.insert_pattern(b"+/b", special=True)
        assert [(stream.pattern, stream.special) for stream in structure.streams()] == [
            (b"$x", True),
            (b"+/a", False),
            (b"+/b", True),
        ]

    @pytest.mark.parametrize("pattern", [b"", b"a/#", b"a+/b", b"a\0", b"\xff"])
    def test_what_is_no_pattern_is_refused_and_inserts_nothing(self, pattern: bytes) -> None:
        structure = Structure([NEVER])
        with pytest.raises(InvalidTopicError):
            structure.insert_pattern(pattern)
        assert structure.export() == edges()


class TestMatch:
    def structure(self) -> Structure:
        structure = Structure([2, 1])
        for topic in (b"m/a/cpu", b"m/b/cpu", b"m", b"m/b", b"$SYS/a", b"$SYS/b", b"n", b"o/a"):
            structure.learn(topic)
        assert [stream.pattern for stream in structure.streams()] == [
            b"m/a/cpu",
            b"m/+/cpu",
            b"m",
            b"m/+",
            b"$SYS/a",
            b"$SYS/+",
            b"n",
            b"+/a",
        ]
        return structure

    def test_a_literal_walks_the_exact_and_the_varying_edge(self) -> None:
        assert matched(self.structure(), b"m/a/cpu") == {b"m/a/cpu": [], b"m/+/cpu": [b"a"]}
        assert matched(self.structure(), b"m/a") == {b"m/+": [b"a"], b"+/a": [b"m"]}
        assert matched(self.structure(), b"m/c") == {b"m/+": [b"c"]}

    def test_plus_walks_all_edges_of_one_level(self) -> None:
        assert matched(self.structure(), b"+") == {b"m": [], b"n": []}
        assert matched(self.structure(), b"+/a") == {b"m/+": [b"a"], b"+/a": [None]}
        assert matched(self.structure(), b"m/+/cpu") == {b"m/a/cpu": [], b"m/+/cpu": [None]}

    def test_hash_takes_its_parent_and_all_below(self) -> None:
        below_m = {b"m": [], b"m/a/cpu": [], b"m/+": [None], b"m/+/cpu": [None]}
        assert matched(self.structure(), b"m/#") == below_m | {b"+/a": [b"m"]}
        assert matched(self.structure(), b"m/b/#") == {b"m/+": [b"b"], b"m/+/cpu": [b"b"]}
        assert matched(self.structure(), b"#") == below_m | {b"n": [], b"+/a": [None]}
        assert matched(self.structure(), b"n/#") == {b"n": [], b"+/a": [b"n"]}

    def test_mqtt_4_7_2_1_a_leading_wildcard_does_not_see_special_topics(self) -> None:
        special = {b"$SYS/a": [], b"$SYS/+": [None]}
        assert matched(self.structure(), b"$SYS/#") == special
        assert matched(self.structure(), b"$SYS/+") == special
        assert matched(self.structure(), b"$SYS/b") == {b"$SYS/+": [b"b"]}
        assert matched(self.structure(), b"+/b") == {b"m/+": [b"b"]}

    def test_what_is_not_there_matches_nothing(self) -> None:
        for text in (b"x", b"m/a/cpu/x", b"m/a/x", b"$other/#", b"/"):
            assert matched(self.structure(), text) == {}
        assert matched(Structure([100, 10]), b"#") == {}


class TestVarying:
    def test_the_topic_comes_back_from_stream_and_varying(self) -> None:
        structure = Structure([NEVER, 0, NEVER, 0])
        for topic in (b"m/a/cpu/0", b"m//cpu/", b"m", b"$SYS/x"):
            placement = structure.learn(topic)
            assert topic_of(placement) == topic
