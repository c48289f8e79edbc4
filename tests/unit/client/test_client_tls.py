"""What commands say of servers with TLS, of their certificates, and of those of the client."""

from pathlib import Path

import grpc
import pytest
from client_fakes import Run, Serve

from completion_server.client.complete_command import complete
from completion_server.client.operator_commands import status
from tests.support.certificates import MakeIdentity


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


@pytest.mark.parametrize(
    ("server", "ca", "said"),
    [
        ("for another host", "server", "its certificate is not for 127.0.0.1"),
        ("tls", "stranger", "not signed by an authority in the file of --tls-ca"),
        ("plain text", "stranger", "does not use TLS: leave out --tls-ca"),
        ("mutual tls", "server", "it wants the certificate of a client that it knows"),
        ("tls", "no certificate", "--tls-ca, --tls-cert or --tls-key can't be used: "),
        ("tls", "server", ""),  # a certificate is an authority for itself, as the ready line says
    ],
)
async def test_a_fault_of_tls_is_named(
    serve: Serve, run: Run, make_identity: MakeIdentity, tmp_path: Path, server: str, ca: str, said: str
) -> None:
    host = "completion.example" if server == "for another host" else "127.0.0.1"
    identities = {"server": make_identity("server", host, make_identity("authority"))}
    identities["stranger"] = make_identity("stranger")
    (tmp_path / "no.pem").write_text("none")
    ours = identities["server"]
    pair, own = [(ours.key.read_bytes(), ours.certificate.read_bytes())], ours.certificate.read_bytes()
    is_mutual = server == "mutual tls"
    credentials = grpc.ssl_server_credentials(pair, own if is_mutual else None, require_client_auth=is_mutual)
    fake = await serve(credentials=None if server == "plain text" else credentials)
    file = identities[ca].certificate if ca in identities else tmp_path / "no.pem"
    result = await run(complete, "-", "--server", fake.address, "--tls-ca", str(file), input=b"x = ")
    assert (result.exit_code, result.stdout) == ((1, "") if said else (0, "a + b"))
    assert said in result.stderr
