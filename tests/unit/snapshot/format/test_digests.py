from __future__ import annotations

from hashlib import blake2b

from siltstone.snapshot.format.digests import DIGEST_BYTES, DigestTable


def digest_of(number: int) -> bytes:
    return blake2b(b"%d" % number, digest_size=DIGEST_BYTES).digest()


def test_digests_are_numbered_from_one_in_the_order_of_their_coming() -> None:
    table = DigestTable()
    assert [table.number_of(digest_of(n)) for n in (5, 3, 5, 4, 3)] == [
        (1, True),
        (2, True),
        (1, False),
        (3, True),
        (2, False),
    ]
    assert len(table) == 3


def test_numbers_stay_when_the_table_grows() -> None:
    table = DigestTable()
    numbers = [table.number_of(digest_of(n)) for n in range(5000)]
    assert numbers == [(n, True) for n in range(1, 5001)]
    assert [table.number_of(digest_of(n)) for n in range(5000)] == [
        (n, False) for n in range(1, 5001)
    ]


def test_digests_that_begin_alike_are_told_apart() -> None:
    table = DigestTable()
    alike = [bytes(8) + n.to_bytes(8, "big") for n in range(100)]
    assert [table.number_of(digest)[0] for digest in alike * 2] == [*range(1, 101)] * 2
