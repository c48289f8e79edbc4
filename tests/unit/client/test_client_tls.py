import shutil
import subprocess
from pathlib import Path

import grpc
import pytest
from client_fakes import Run, Serve

from completion_server.client.complete_command import complete

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
