from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from siltstone.client.tls import show_certificate
from siltstone.errors import UsageError
from tests.support.certificates import Authority, encrypt_key


def complaint(certificate: str, key: str | None) -> str:
    with pytest.raises(UsageError) as refused:
        show_certificate(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), certificate=certificate, key=key)
    return str(refused.value)


def test_each_error_names_the_file_that_is_wrong(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files, other = authority.client("us"), authority.client("them")
    empty = tmp_path / "empty"
    empty.touch()
    missing = "the file cannot be read: no such file or directory: path=/none"
    assert complaint("/none", files.key) == missing
    assert complaint(files.certificate, "/none") == missing
    assert complaint(files.certificate, str(tmp_path)) == (
        f"the file cannot be read: is a directory: path={tmp_path}"
    )
    assert complaint(str(empty), files.key) == (
        f"the file must contain a PEM certificate: path={empty}"
    )
    assert complaint(files.certificate, str(empty)) == (
        f"the file must contain a PEM private key: path={empty}"
    )
    assert complaint(files.certificate, other.key) == (
        f"the key does not match the certificate: path={other.key}"
    )


def test_the_password_of_a_key_is_not_asked_for(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    files = Authority(tmp_path).client("us")
    encrypt_key(files, b"secret")
    assert complaint(files.certificate, files.key) == (
        f"the key is encrypted, decrypt its file: path={files.key}"
    )
    assert capfd.readouterr() == ("", "")


def test_one_file_may_hold_the_certificate_and_the_key(tmp_path: Path) -> None:
    files = Authority(tmp_path).client("us")
    assert complaint(files.certificate, None) == (
        f"the file must contain a PEM private key: path={files.certificate}"
    )
    both = tmp_path / "both"
    both.write_bytes(Path(files.key).read_bytes() + Path(files.certificate).read_bytes())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    show_certificate(context, certificate=both, key=None)
