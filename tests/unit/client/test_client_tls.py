"""What commands say of servers with TLS, of their certificates, and of those of the client."""

from pathlib import Path

import grpc
import pytest
from client_fakes import Run, Serve

from completion_server.client.complete_command import complete
from completion_server.client.operator_commands import status
from completion_server.client.probe_command import probe
from tests.support.certificates import MakeIdentity

COMMANDS = ((complete, ("-", "--server")), (status, ("--admin",)), (probe, ("--once", "--server")))


async def test_a_plaintext_client_is_told_that_the_server_uses_tls(
    serve: Serve, run: Run, make_identity: MakeIdentity
) -> None:
    fake = await serve(credentials=make_identity("server").server_credentials())
    for command, arguments in COMMANDS:
        result = await run(command, *arguments, fake.address, input=b"x = ")
        assert result.exit_code == 1
        assert f"The server at {fake.address} encrypts its connections (TLS)" in result.output
        assert "with --tls-ca FILE" in result.output


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
    ours, stranger = make_identity("server", host, make_identity("authority")), make_identity("stranger")
    (tmp_path / "no.pem").write_text("none")
    own, is_mutual = ours.certificate.read_bytes(), server == "mutual tls"
    credentials = grpc.ssl_server_credentials(
        [(ours.key.read_bytes(), own)], own if is_mutual else None, require_client_auth=is_mutual
    )
    fake = await serve(credentials=None if server == "plain text" else credentials)
    file = {"server": ours.certificate, "stranger": stranger.certificate}.get(ca, tmp_path / "no.pem")
    for command, arguments in (COMMANDS[0], COMMANDS[2]):
        result = await run(command, *arguments, fake.address, "--tls-ca", str(file), input=b"x = ")
        assert result.exit_code == (1 if said else 0), result.output
        assert said in result.output
