from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.exceptions import InvalidSignature

from siltstone.cluster.certificates import Authority

NOW = datetime(2026, 8, 1, tzinfo=UTC)
AUTHORITY = Authority("plant", b"the secret of this cluster")


def test_all_sites_derive_the_same_authority_from_the_secret() -> None:
    assert Authority("plant", b"the secret of this cluster").pem == AUTHORITY.pem


@pytest.mark.parametrize(
    ("cluster", "secret"), [("other", b"the secret of this cluster"), ("plant", b"another secret")]
)
def test_another_cluster_or_secret_has_another_authority(cluster: str, secret: bytes) -> None:
    (own,) = x509.load_pem_x509_certificates(AUTHORITY.pem)
    (theirs,) = x509.load_pem_x509_certificates(Authority(cluster, secret).pem)
    assert own.public_key() != theirs.public_key()
    with pytest.raises((InvalidSignature, ValueError)):
        own.verify_directly_issued_by(theirs)


def test_a_site_has_a_certificate_for_all_hosts_and_for_this_machine() -> None:
    (issuer,) = x509.load_pem_x509_certificates(AUTHORITY.pem)
    (site,) = x509.load_pem_x509_certificates(
        AUTHORITY.issue("a", ["10.0.0.1", "b.example", "127.0.0.1"], NOW)
    )
    site.verify_directly_issued_by(issuer)
    names = site.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(name.value) for name in names] == [
        "10.0.0.1",
        "b.example",
        "127.0.0.1",
        "::1",
        "localhost",
    ]
    assert site.not_valid_before_utc == NOW - timedelta(days=1)
    assert site.not_valid_after_utc == NOW + timedelta(days=90)


def test_no_file_of_the_authority_has_its_key() -> None:
    assert b"PRIVATE" not in AUTHORITY.pem
