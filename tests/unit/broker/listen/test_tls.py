"""Who a certificate says a client is; contexts from real files are in integration."""

from __future__ import annotations

import pytest

from siltstone.broker.listen.tls import certificate_user, server_context
from siltstone.broker.settings.broker import ListenerSettings
from siltstone.errors import UsageError


def certificate(*subject: tuple[str, str]) -> dict[str, object]:
    """Return the peercert of a subject, with what else the ssl module puts there."""
    return {
        "subject": tuple((part,) for part in subject),
        "issuer": ((("commonName", "the authority"),),),
        "version": 3,
    }


def test_the_common_name_of_the_subject_is_the_user() -> None:
    peercert = certificate(("organizationName", "Quarry"), ("commonName", "sensor-7"))
    assert certificate_user(peercert) == "sensor-7"


def test_a_common_name_beside_another_part_is_found() -> None:
    joined = {"subject": ((("organizationName", "Quarry"), ("commonName", "sensor-7")),)}
    assert certificate_user(joined) == "sensor-7"


@pytest.mark.parametrize(
    "peercert",
    [
        None,
        {},
        {"subject": ()},
        certificate(("organizationName", "Quarry")),
        certificate(("commonName", "")),
        certificate(("commonName", "admin"), ("commonName", "sensor-7")),
        certificate(("commonName", "admin\0.evil.example")),
    ],
)
def test_who_shows_no_certificate_or_no_clear_name_is_nobody(
    peercert: dict[str, object] | None,
) -> None:
    assert certificate_user(peercert) is None


def test_a_certificate_that_is_not_there_is_named() -> None:
    settings = ListenerSettings(
        kind="tls", port=8883, certificate="/nowhere/server.crt", key="/nowhere/server.key"
    )
    with pytest.raises(UsageError) as refused:
        server_context(settings)
    assert str(refused.value) == (
        "cannot listen on tls://127.0.0.1:8883: certificate cannot be read: "
        "No such file or directory: path=/nowhere/server.crt"
    )
