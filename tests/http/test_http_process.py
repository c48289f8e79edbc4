"""The HTTP listener of `completion-server serve`, as an operator runs it."""

import asyncio
import signal
from pathlib import Path

from tests.support.certificates import MakeIdentity
from tests.support.http_clients import connection_to, http_session, serves_tls
from tests.support.models import TARGET
from tests.support.server import FREE_PORTS, eventually
from tests.support.server_process import flags, serving

SCRIPTED = ("engine.kind=scripted", f"engine.model={TARGET}", *FREE_PORTS)
SETTINGS = (*SCRIPTED, "server.http_listen=127.0.0.1:0")


async def test_sigterm_lets_an_accepted_request_finish_and_ends_the_listener(tmp_path: Path) -> None:
    slow = ("engine.scripted_times=large_model_on_a_gpu", "engine.warm_up=false")
    async with serving(tmp_path, "--json", *flags(*SETTINGS, *slow)) as server, http_session() as session:
        url = f"http://{server.ready['http_address']}"
        body = {"prompt": "def f(a):\n    return ", "suffix": "\n", "max_tokens": 128, "stream": True}
        async with session.post(f"{url}/v1/completions", json=body) as answer:
            first = await answer.content.readline()
            server.process.send_signal(signal.SIGTERM)
            rest = await answer.content.read()
        assert first.startswith(b'data: {"id":"cmpl-')
        assert rest.endswith(b"data: [DONE]\n\n")
        assert await server.ended() == 0
        log = await asyncio.to_thread(server.log.read_text)
        assert "uvicorn" not in log
        assert "return" not in log


async def test_over_tls_connections_in_a_handshake_count_and_end_with_the_process(
    tmp_path: Path, make_identity: MakeIdentity
) -> None:
    ours = make_identity("server")
    tls = (f"server.tls.certificate={ours.certificate}", f"server.tls.key={ours.key}", "server.http_listen=0.0.0.0:0")
    async with serving(tmp_path, "--json", "--insecure", *flags(*SCRIPTED, *tls)) as server:
        address = server.ready["http_address"]
        async with connection_to(address), connection_to(address):
            await eventually(lambda: serves_tls(address, ours))
            server.process.send_signal(signal.SIGTERM)
            assert await server.ended() == 0
