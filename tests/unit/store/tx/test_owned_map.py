from __future__ import annotations

import pytest

from siltstone.errors import FencedError, OutcomeUnknownError, PoisonedError, UsageError
from siltstone.store.tx.owned_map import OWNED_MAP_SETTINGS, OwnedMap, guard_topic
from tests.support.tx_builders import World

AWKWARD = ["", "a/b", "+", "#", "100%", "%2F", "ä\x00", "$x", "a b"]


def world() -> World:
    return World(**OWNED_MAP_SETTINGS.to_json() | {"thresholds": OWNED_MAP_SETTINGS.thresholds})


class TestMap:
    def test_it_is_a_map_that_knows_what_was_changed(self) -> None:
        found = OwnedMap({"a": b"1", "b": b"2"})
        found["c"] = b"3"
        del found["a"]
        assert (len(found), list(found), "a" in found, "c" in found) == (2, ["b", "c"], False, True)
        assert (found["b"], found.get("a"), found.items()) == (
            b"2",
            None,
            [("b", b"2"), ("c", b"3")],
        )
        assert found.dirty == ["c", "a"]
        assert (found.take_dirty(), found.dirty) == (["c", "a"], [])
        found["d"] = b"4"
        found.put_back(["c"])
        assert found.dirty == ["d", "c"]

    def test_what_is_not_there_cannot_be_removed_and_is_not_changed(self) -> None:
        found = OwnedMap({})
        with pytest.raises(KeyError):
            del found["a"]
        assert found.dirty == []

    def test_values_are_bytes(self) -> None:
        found = OwnedMap({})
        with pytest.raises((UsageError, TypeError)):
            found["a"] = "text"  # type: ignore[assignment]
        assert (len(found), found.dirty) == (0, [])


class TestOwnership:
    def test_what_one_owner_saves_the_next_one_loads(self) -> None:
        with world() as here:
            first = here.database.take("session/1")
            assert (first.names(), first.is_dirty, first.save()) == ([], False, -1)
            for name in AWKWARD:
                for key in AWKWARD:
                    first.map(name)[key] = f"{name}|{key}".encode()
            assert first.is_dirty
            assert first.save() == 2
            assert (first.is_dirty, first.save()) == (False, -1)
            here.reopen()
            second = here.database.take("session/1")
            assert second.names() == sorted(AWKWARD)
            assert {name: dict(second.map(name).items()) for name in AWKWARD} == {
                name: {key: f"{name}|{key}".encode() for key in AWKWARD} for name in AWKWARD
            }
            assert second.serial == 3

    def test_only_what_was_changed_is_written(self) -> None:
        with world() as here:
            maps = here.database.take("s")
            for number in range(10):
                maps.map("m")[str(number)] = b"v"
            maps.save()
            before = len(here.rows())
            del maps.map("m")["3"]
            maps.map("m")["4"] = b"new"
            with here.database.transaction() as tx:
                tx.delete("d/s/m/5")
            maps.save()
            # The key that somebody else has deleted was not changed here, so it stays deleted.
            assert len(here.rows()) == before - 2
            assert here.database.get("d/s/m/4") == b"new"

    def test_collections_are_kept_apart(self) -> None:
        with world() as here:
            for name in ("s", "s/m", "s1", "", "S"):
                maps = here.database.take(name)
                maps.map("m")["k"] = name.encode()
                maps.save()
            for name in ("s", "s/m", "s1", "", "S"):
                assert here.database.take(name).map("m").items() == [("k", name.encode())]

    def test_who_was_taken_over_is_fenced_and_changes_nothing(self) -> None:
        with world() as here:
            old = here.database.take("s")
            old.map("m")["k"] = b"old"
            old.save()
            new = here.database.take("s")
            assert new.map("m")["k"] == b"old"
            old.map("m")["k"] = b"too late"
            for _ in range(2):
                with pytest.raises(FencedError) as caught:
                    old.save()
                assert [one.topic for one in caught.value.unmet] == [guard_topic("s")]
                assert old.is_dirty
            with pytest.raises(FencedError):
                old.drop()
            new.map("m")["k"] = b"new"
            new.save()
            assert here.database.take("s").map("m").items() == [("k", b"new")]

    def test_a_takeover_between_load_and_commit_of_another_is_seen(self) -> None:
        with world() as here:
            owners = [here.database.take("s") for _ in range(3)]
            serials = [owner.serial for owner in owners]
            assert serials == sorted(set(serials))
            for owner in owners[:-1]:
                owner.map("m")["k"] = b"v"
                with pytest.raises(FencedError):
                    owner.save()
            owners[-1].map("m")["k"] = b"v"
            owners[-1].save()

    def test_a_dropped_collection_is_gone_and_its_owner_too(self) -> None:
        with world() as here:
            maps = here.database.take("s")
            maps.map("m")["k"] = b"v"
            maps.save()
            other = here.database.take("s2")
            other.map("m")["k"] = b"v"
            other.save()
            maps.drop()
            assert [topic for topic, _, _ in here.rows()] == ["d/s2/m/k", "g/s2"]
            maps.map("m")["k"] = b"v"
            with pytest.raises(UsageError, match="the collection was dropped: collection='s'"):
                maps.save()
            assert here.database.take("s").names() == []

    def test_a_database_with_times_is_refused(self) -> None:
        with World(timed=True) as here, pytest.raises(UsageError, match="need a plain map"):
            here.database.take("s")

    def test_names_that_are_no_text_are_refused(self) -> None:
        with world() as here:
            with pytest.raises(UsageError, match="must be valid Unicode"):
                here.database.take("\ud800")
            maps = here.database.take("s")
            with pytest.raises(UsageError, match="must be valid Unicode"):
                maps.map("\ud800")
            maps.map("m")["\ud800"] = b"v"
            with pytest.raises(UsageError, match="must be valid Unicode"):
                maps.save()


class TestSaving:
    def test_saves_may_be_under_way_while_more_is_changed(self) -> None:
        with world() as here:
            maps = here.database.take("s")
            maps.map("m")["k"] = b"1"
            first = maps.save_later()
            maps.map("m")["k"] = b"2"
            second = maps.save_later()
            assert first is not None
            assert second is not None
            assert maps.save_later() is None
            assert first.wait().serial < second.wait().serial
            assert here.database.take("s").map("m")["k"] == b"2"

    @pytest.mark.parametrize("stored", [True, False])
    def test_what_may_not_be_saved_is_still_to_be_saved(self, stored: bool) -> None:
        with world() as here:
            maps = here.database.take("s")
            maps.map("m")["k"] = b"v"
            here.fail_write(stored=stored)
            with pytest.raises(OutcomeUnknownError):
                maps.save()
            assert maps.map("m").dirty == ["k"]
            with pytest.raises(PoisonedError):
                maps.save()
            assert maps.map("m").dirty == ["k"]
            again = here.crash().take("s")
            assert again.map("m").items() == ([("k", b"v")] if stored else [])
