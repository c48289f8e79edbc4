"""The TLS files of a listener: what is used after they change, and what is said."""

import logging
import ssl
from pathlib import Path

import pytest

from completion_server.core.certificates import CertificateFiles
from completion_server.core.errors import ConfigError
from tests.support.certificates import DAY_S, Identity, MakeIdentity


def install(identity: Identity, folder: Path) -> None:
    (folder / "tls.key").write_bytes(identity.key.read_bytes())
    (folder / "tls.crt").write_bytes(identity.certificate.read_bytes())


@pytest.fixture
def folder(tmp_path: Path, make_identity: MakeIdentity) -> Path:
    found = tmp_path / "installed"
    found.mkdir()
    install(make_identity("first"), found)
    return found


def files_in(folder: Path, client_ca: str = "") -> CertificateFiles:
    return CertificateFiles("server.tls", str(folder / "tls.crt"), str(folder / "tls.key"), client_ca)


def test_new_files_are_used_when_they_are_whole(folder: Path, make_identity: MakeIdentity) -> None:
    files, second = files_in(folder), make_identity("second", lives_s=2 * DAY_S)
    first = files.current
    (folder / "tls.crt").write_bytes(second.certificate.read_bytes())
    files.look()
    (folder / "tls.key").write_bytes(second.key.read_bytes())  # the other half, a moment later
    files.look()
    assert files.current is first
    files.look()
    assert files.current.chain == second.certificate.read_bytes()
    assert files.current.context is not first.context
    assert files.current.expires_at == second.expires_at
    used = files.current
    files.look()
    assert files.current is used
    assert not files.has_failed


@pytest.mark.parametrize("fault", ["another's key", "no PEM", "no file"])
def test_the_last_good_pair_stays_and_one_line_says_why(
    folder: Path, make_identity: MakeIdentity, caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    files, key = files_in(folder), folder / "tls.key"
    first, good = files.current, key.read_bytes()
    match fault:
        case "another's key":
            key.write_bytes(make_identity("other").key.read_bytes())
        case "no PEM":
            key.write_text("no key")
        case _:
            key.unlink()
    with caplog.at_level(logging.INFO, "completion_server"):
        for _ in range(4):
            files.look()
        assert (files.current, files.has_failed) == (first, True)
        (line,) = caplog.messages
        assert line.startswith("server.tls: the new certificate, key or client_ca can't be used; the one until ")
        assert good.decode() not in line
        key.write_bytes(good)
        for _ in range(3):
            files.look()
    assert not files.has_failed
    assert files.current.key == good
    assert len(caplog.messages) == 2


def test_a_new_authority_of_clients_is_used(folder: Path, make_identity: MakeIdentity) -> None:
    authority = make_identity("authority")
    files = files_in(folder, str(authority.certificate))
    assert files.current.context.verify_mode is ssl.CERT_REQUIRED
    make_identity("authority")  # over the one before
    for _ in range(2):
        files.look()
    assert files.current.client_ca == authority.certificate.read_bytes()


def test_files_that_never_were_good_are_refused(folder: Path) -> None:
    (folder / "tls.key").write_text("no key")
    with pytest.raises(ConfigError, match=r"server\.tls: its certificate, key or client_ca can't be used"):
        files_in(folder)
