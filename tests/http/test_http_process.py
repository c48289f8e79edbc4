"""The HTTP listener of `completion-server serve`, as an operator runs it."""

import asyncio
import signal
from pathlib import Path

from tests.support.http_clients import http_session
from tests.support.models import TARGET
from tests.support.server import FREE_PORTS
from tests.support.server_process import flags, serving

SETTINGS = ("engine.kind=scripted", f"engine.model={TARGET}", "server.http_listen=127.0.0.1:0", *FREE_PORTS)


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
