"""Segments and indexes with a wrong file name: renamed, or moved to quarantine.

A valid header contains the serial with which its segment begins, and so its correct name. A valid
index contains the same. A segment is renamed if its correct name is free. A second copy is moved to
quarantine. An index with a wrong name is moved there too, because it can be rebuilt. A crash at any
step leaves names that the next repair corrects.
"""

from __future__ import annotations

from pathlib import PurePath

from siltstone.errors import SiltstoneError
from siltstone.fs.api import FileSystem
from siltstone.fs.publish import move_aside, quarantine_file
from siltstone.store.log.check.findings import Finding
from siltstone.store.log.check.survey import load_index
from siltstone.store.segment.chain import SlabIdentity
from siltstone.store.segment.segment import open_segment, segment_path
from siltstone.store.segment.sift import SlabBounds, list_segments


def put_back(
    fs: FileSystem, place: PurePath, identity: SlabIdentity, quarantine: PurePath
) -> list[Finding]:
    """Give the segments of a slab their correct names; return the findings with their repairs."""
    findings: list[Finding] = []
    bounds = SlabBounds(seed=identity.seed)
    named, _ = list_segments(fs, place, fs.list(place), bounds)
    names = {int(PurePath(entry.name).stem) for entry in named}
    strays = {base: own for base in names if (own := _own_base(fs, place, base, identity)) != base}
    while strays:
        if homeward := [base for base, own in strays.items() if own not in names]:
            base = homeward[0]
            own = strays.pop(base)
            path, home = segment_path(place, base), segment_path(place, own)
            _rename(fs, path, home)
            names = names - {base} | {own}
            findings.append(_finding(path, own, f"renamed to {home.name}"))
        elif copies := [base for base, own in strays.items() if own not in strays]:
            base = copies[0]
            findings.append(_put_away(fs, place, base, strays.pop(base), quarantine))
            names.remove(base)
        else:
            # The segments have each other's names. Move one of them out of the way of the first.
            base, aside = next(iter(strays)), max(names) + 1
            _rename(fs, segment_path(place, base), segment_path(place, aside))
            strays[aside] = strays.pop(base)
            names = names - {base} | {aside}
    return findings + _put_indexes_away(fs, place, quarantine)


def _own_base(fs: FileSystem, place: PurePath, base: int, identity: SlabIdentity) -> int:
    """Return the serial in the header of a segment of this slab; else the one of its file name."""
    try:
        header = open_segment(fs, segment_path(place, base)).header
    except SiltstoneError:
        return base
    said = (header.database, header.shard, header.generation, header.seed)
    ours = (identity.database, identity.shard, identity.generation, identity.seed)
    return header.base_serial if said == ours else base


def _rename(fs: FileSystem, path: PurePath, target: PurePath) -> None:
    move_aside(fs, target)
    fs.rename(path, target)
    fs.sync_directory(path.parent)


def _put_away(
    fs: FileSystem, place: PurePath, base: int, own: int, quarantine: PurePath
) -> Finding:
    path = segment_path(place, base)
    reason = f"{path}: a second segment that begins with serial {own}"
    return _finding(path, own, f"kept as {quarantine_file(fs, path, quarantine, reason)}")


def _put_indexes_away(fs: FileSystem, place: PurePath, quarantine: PurePath) -> list[Finding]:
    """Move indexes with the name of another segment to quarantine."""
    findings: list[Finding] = []
    for entry in fs.list(place):
        path = place / entry.name
        if path.suffix != ".idx" or not path.stem.isdecimal():
            continue
        sealed, _ = load_index(fs, path.with_suffix(".seg"))
        if sealed is None or sealed.index.first_serial == int(path.stem):
            continue
        problem = (
            f"the index belongs to the segment that begins with serial {sealed.index.first_serial}"
        )
        kept = quarantine_file(fs, path, quarantine, f"{path}: {problem}")
        findings.append(Finding(path=path, offset=0, problem=problem, repaired=f"kept as {kept}"))
    return findings


def _finding(path: PurePath, own: int, repaired: str) -> Finding:
    problem = f"the segment has the name of another one: it begins with serial {own}"
    return Finding(path=path, offset=0, problem=problem, repaired=repaired)
