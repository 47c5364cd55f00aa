from __future__ import annotations

import pytest

import siltstone
from siltstone import public
from siltstone.store.database import Database
from siltstone.store.directory import open_store


def test_the_package_offers_the_public_names() -> None:
    assert siltstone.__all__ == public.__all__
    for name in public.__all__:
        assert getattr(siltstone, name) is getattr(public, name)
        assert vars(siltstone)[name] is getattr(public, name)
    assert [name for name in dir(siltstone) if name in public.__all__] == sorted(public.__all__)
    assert siltstone.Database is Database
    assert siltstone.open is open_store


def test_a_name_of_an_earlier_version_still_works() -> None:
    assert siltstone.FeedPosition is siltstone.Position


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'siltstone' has no attribute 'nothing'"):
        _ = siltstone.nothing  # type: ignore[attr-defined]
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        from siltstone import nothing  # type: ignore[attr-defined] # noqa: F401, PLC0415
