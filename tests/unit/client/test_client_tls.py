import shutil
import subprocess
from pathlib import Path

import grpc
import pytest
from client_fakes import Run, Serve

from completion_server.client.complete_command import complete
from completion_server.client.operator_commands import status
from tests.support.certificates import MakeIdentity

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificates with openssl")


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    names = "-addext subjectAltName=DNS:localhost,IP:127.0.0.1"
    subprocess.run(
        [*make.split(), *names.split(), "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True
    )
    return key, certificate


async def test_a_plaintext_client_is_told_that_the_server_uses_tls(
    serve: Serve, run: Run, make_identity: MakeIdentity
) -> None:
    fake = await serve(credentials=make_identity("server").server_credentials())
    for command, option in ((complete, "--server"), (status, "--admin")):
        arguments = ("-",) if command is complete else ()
        result = await run(command, *arguments, option, fake.address, input=b"x = ")
        assert result.exit_code == 1
        assert f"The server at {fake.address} encrypts its connections (TLS)" in result.stderr
        assert "with --tls-ca FILE" in result.stderr


async def test_a_certificate_for_another_host_is_named(serve: Serve, run: Run, make_identity: MakeIdentity) -> None:
    other = make_identity("server", "completion.example")
    fake = await serve(credentials=other.server_credentials())
    result = await run(complete, "-", "--server", fake.address, "--tls-ca", str(other.certificate), input=b"x = ")
    assert result.exit_code == 1
    assert "its certificate is not for 127.0.0.1" in result.stderr
    assert "Use a name that the certificate has" in result.stderr


async def test_a_certificate_of_an_unknown_authority_is_named(
    serve: Serve, run: Run, make_identity: MakeIdentity
) -> None:
    fake = await serve(credentials=make_identity("server").server_credentials())
    stranger = make_identity("stranger")
    result = await run(complete, "-", "--server", fake.address, "--tls-ca", str(stranger.certificate), input=b"x = ")
    assert result.exit_code == 1
    assert "not signed by an authority in the file of --tls-ca" in result.stderr


async def test_a_certificate_is_an_authority_for_itself_as_the_ready_line_says(
    serve: Serve, run: Run, make_identity: MakeIdentity
) -> None:
    ours = make_identity("server", "127.0.0.1", make_identity("authority"))
    fake = await serve(credentials=ours.server_credentials())
    result = await run(complete, "-", "--server", fake.address, "--tls-ca", str(ours.certificate), input=b"x = ")
    assert (result.exit_code, result.stdout) == (0, "a + b")


async def test_a_tls_client_is_told_that_the_server_uses_none(
    serve: Serve, run: Run, make_identity: MakeIdentity
) -> None:
    fake = await serve()
    authority = make_identity("authority").certificate
    result = await run(complete, "-", "--server", fake.address, "--tls-ca", str(authority), input=b"x = ")
    assert result.exit_code == 1
    assert f"The server at {fake.address} does not use TLS: leave out --tls-ca" in result.stderr


async def test_a_client_without_a_certificate_is_told_that_one_is_wanted(
    serve: Serve, run: Run, make_identity: MakeIdentity
) -> None:
    ours = make_identity("server")
    pair = [(ours.key.read_bytes(), ours.certificate.read_bytes())]
    credentials = grpc.ssl_server_credentials(pair, ours.certificate.read_bytes(), require_client_auth=True)
    fake = await serve(credentials=credentials)
    result = await run(complete, "-", "--server", fake.address, "--tls-ca", str(ours.certificate), input=b"x = ")
    assert result.exit_code == 1
    assert "it wants the certificate of a client that it knows" in result.stderr


async def test_a_file_that_is_no_certificate_is_named(
    serve: Serve, run: Run, make_identity: MakeIdentity, tmp_path: Path
) -> None:
    fake = await serve(credentials=make_identity("server").server_credentials())
    (tmp_path / "ca.pem").write_text("none")
    result = await run(complete, "-", "--server", fake.address, "--tls-ca", str(tmp_path / "ca.pem"), input=b"x = ")
    assert result.exit_code == 1
    assert "--tls-ca, --tls-cert or --tls-key can't be used: " in result.stderr


@needs_openssl
async def test_a_server_and_its_client_authenticate_each_other(
    serve: Serve, run: Run, certificate: tuple[Path, Path]
) -> None:
    key, public = certificate
    pair = [(key.read_bytes(), public.read_bytes())]
    credentials = grpc.ssl_server_credentials(pair, public.read_bytes(), require_client_auth=True)
    fake = await serve(credentials=credentials)
    address = fake.address.replace("127.0.0.1", "localhost")
    tls = ("--tls-ca", str(public), "--tls-cert", str(public), "--tls-key", str(key))
    result = await run(complete, "-", "--server", address, *tls, input=b"x = ")
    assert (result.exit_code, result.stdout) == (0, "a + b")
    refused = await run(complete, "-", "--server", address, "--tls-ca", str(public), input=b"x = ")
    assert refused.exit_code == 1
    assert len(fake.requests) == 1
