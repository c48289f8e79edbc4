"""The examples of docs/client.md and README.md run against a server."""

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import grpc
import pytest

from completion.v1 import completion_pb2 as pb
from completion_client import CompletionClient, Endpoint, ServiceError
from completion_server.engine.scripted.engine import ScriptedEngine
from tests.support.certificates import make_identity_in
from tests.support.models import ROOT
from tests.support.server import make_config, run_server

EXAMPLE_TIMEOUT_S = 60.0
NAME = "completion.example.com:443"


@pytest.mark.parametrize(
    ("page", "printed"), [("docs/client.md", "stop a + b\na + b"), ("README.md", "a + b\n")], ids=["page", "readme"]
)
async def test_the_example_prints_what_the_server_completes(page: str, printed: str) -> None:
    example = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)[0]
    engine = ScriptedEngine(lambda _request: ("a", " + b", "\n"))
    async with run_server(make_config(), lambda: engine) as server:
        assert "127.0.0.1:50051" in example
        script = example.replace("127.0.0.1:50051", server.ready.address)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", script, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        async with asyncio.timeout(EXAMPLE_TIMEOUT_S):
            output, errors = await process.communicate()
    assert output.decode() == printed, errors.decode()


async def test_a_client_shows_its_certificate_as_the_page_says(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "client.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"```sh\n(completion-server complete .*?)```", page, re.DOTALL)
    (expression,) = re.findall(r"```python\n(Endpoint\(.*?)```", page, re.DOTALL)
    authority = make_identity_in(tmp_path, "ca")
    gateway = make_identity_in(tmp_path, "gateway", issuer=authority)
    make_identity_in(tmp_path, "me", host="me", issuer=authority)
    (tmp_path / "app.py").write_text("\n" * 11 + "x = \n", encoding="utf-8")
    tls = {"certificate": gateway.certificate, "key": gateway.key, "client_ca": authority.certificate}
    config = make_config(*(f"server.tls.{key}={path}" for key, path in tls.items()))
    async with run_server(config, lambda: ScriptedEngine(lambda _request: ("a", " + b", "\n"))) as server:
        shown = command.replace(NAME, server.ready.address)
        environment = {"PYTHONPATH": f"{ROOT}:{ROOT / 'proto'}"}
        process = await asyncio.create_subprocess_shell(
            shown.replace("completion-server", f"{sys.executable} -m completion_server"),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path, env=environment,
        )  # fmt: skip
        async with asyncio.timeout(EXAMPLE_TIMEOUT_S):
            output, errors = await process.communicate()
        assert output.decode() == "a + b", errors.decode()
        own = eval(expression.replace(NAME, server.ready.address), {"Endpoint": Endpoint, "Path": tmp_path.joinpath})
        async with CompletionClient(own, user="ada") as client:
            assert (await client.complete(pb.CompleteRequest(prefix="x = "), timeout_s=20)).text == "a + b"
        async with CompletionClient(Endpoint(own.address, own.ca), user="ada") as stranger:
            with pytest.raises(ServiceError) as refused:
                await stranger.complete(pb.CompleteRequest(prefix="x = "), timeout_s=20)
    assert refused.value.status is grpc.StatusCode.UNAVAILABLE
