"""This project's server as a contestant: a child process that is called over gRPC, as editors call it."""

import json
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import psutil

from completion.v1 import completion_pb2 as pb
from completion.v1.completion_pb2_grpc import CompletionServiceStub
from completion_client.endpoint import caller_metadata
from loadtest import LoadTestError
from loadtest.bench.runner.contest import Contestant
from loadtest.bench.runner.loops import BenchPrompt, Block, Sample, closed_loop
from loadtest.processes.child import FIRST_START_S, Child

if TYPE_CHECKING:
    from completion.v1.completion_pb2_grpc import CompletionServiceAsyncStub

_COMMAND = (sys.executable, "-m", "completion_server")
_REQUEST_S = 30.0
_ANSWERED = (pb.FINISH_REASON_STOP, pb.FINISH_REASON_LENGTH)
_CACHED = (pb.CACHE_LEVEL_LOCAL, pb.CACHE_LEVEL_SHARED)

# The system picks the ports. The engine's heartbeat is off, so that an idle server uses no CPU while another one is
# measured. All editors of a benchmark have one address. Benchmarks repeat requests, which must be computed.
_OVERRIDES = (
    "server.listen=127.0.0.1:0",
    "server.admin_listen=127.0.0.1:0",
    "server.http_listen=",
    "cache.enabled=false",
    "admission.users_per_peer=0",
)
# One connection for each channel; by default gRPC shares one between channels to the same address.
CHANNEL_OPTIONS = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0))
_METRICS = {True: "server.metrics_listen=127.0.0.1:0", False: "server.metrics_listen="}

SERVES_ALL = (
    "shed.when=never",
    "scheduling.step_tolerance=0",
    "admission.user_requests_per_s=0",
    "admission.user_tokens_per_s=0",
)
"""For benchmarks of the engine: no request is shed, and the number of slots is fixed."""
SCRIPTED = ("engine.kind=scripted", "engine.warm_up=false", "engine.draft_model=", "speculation.mode=fixed")
"""An engine that is ready at once."""


class CommandError(LoadTestError):
    """A command of the server failed; the message has its error output."""


class NotAnsweredError(LoadTestError):
    """The server ended a request without an answer."""


def flags(config: Path, overrides: Sequence[str]) -> list[str]:
    """Return the command line flags for a configuration."""
    settings = (flag for override in overrides for flag in ("--set", override))
    return ["--config", str(config), *settings]


def effective_config(config: Path, overrides: Sequence[str]) -> dict[str, Any]:
    """Return the server's effective configuration, with vLLM's "engine_args" and "prompt_budget_tokens".

    Raises CommandError if the configuration is not valid.
    """
    command = [*_COMMAND, "check-config", "--json", *flags(config, overrides)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CommandError(f"completion_server check-config failed:\n{done.stderr.strip()}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


class ServerProcess(Contestant):
    """A running server, and its editors, each with its own connection."""

    def __init__(
        self,
        config: Path,
        overrides: Sequence[str] = (),
        name: str = "server",
        env: Mapping[str, str] | None = None,
        *,
        has_metrics: bool = False,
    ) -> None:
        """Start the server and wait until it is warm. With metrics, `ready` has their address.

        Editors connect at their first request. Raises StartError if the server did not start.
        """
        self.name = name
        command = [*_COMMAND, "serve", "--json", *flags(config, (*_OVERRIDES, _METRICS[has_metrics], *overrides))]
        child = Child(name, command, env=env, is_piped=True)
        self.ready = self._begin(child, lambda child: child.read_json(FIRST_START_S))
        self._run_id = uuid.uuid4().hex[:8]
        self._num_asked = 0
        self._channels: list[grpc.aio.Channel] = []
        self._stubs: list[CompletionServiceAsyncStub] = []

    @property
    def pid(self) -> int:
        """The process id."""
        return self._child.pid

    async def run(self, prompts: Sequence[BenchPrompt], concurrency: int) -> Block:
        """Complete each prompt once, `concurrency` at a time."""
        self._connect(concurrency)
        return await closed_loop(prompts, concurrency, self._ask)

    async def aclose(self) -> None:
        """Close the connections and stop the server."""
        try:
            for channel in self._channels:
                await channel.close()
        finally:
            self.stop()

    def _connect(self, count: int) -> None:
        while len(self._stubs) < count:
            channel = grpc.aio.insecure_channel(self.ready["address"], options=CHANNEL_OPTIONS)
            self._channels.append(channel)
            self._stubs.append(CompletionServiceStub(channel))

    async def _ask(self, caller: int, prompt: BenchPrompt) -> Sample:
        self._num_asked += 1
        # Each document has its own user: requests of two documents don't supersede each other, and the next key finds
        # the document and its part of the prefix cache, on whichever connection it comes.
        name = f"{self._run_id}-{prompt.document or self._num_asked}"
        request = pb.CompleteRequest(
            session_id=name,
            sequence=self._num_asked,
            document_uri=f"untitled:{name}",
            language_id="python",
            prefix=prompt.prefix,
            suffix=prompt.suffix,
            mode=pb.MODE_MULTI_LINE,
            max_tokens=prompt.max_tokens,
            temperature=0.0,
            without_completion_cache=True,
        )
        ttft_ms: float | None = None
        end: pb.End | None = None
        start = time.perf_counter()
        try:
            call = self._stubs[caller].Complete(request, timeout=_REQUEST_S, metadata=caller_metadata(name))
            async for response in call:
                text = response.delta.text or response.end.text
                if ttft_ms is None and text.strip():
                    ttft_ms = (time.perf_counter() - start) * 1000
                if response.HasField("end"):
                    end = response.end
                    break
        except grpc.aio.AioRpcError as error:
            raise NotAnsweredError(f"a request failed: {error.details()} ({error.code().name})") from error
        return sample_of(end, ttft_ms, (time.perf_counter() - start) * 1000)


def sample_of(end: pb.End | None, ttft_ms: float | None, total_ms: float) -> Sample:
    """Return a measured answer. Raises NotAnsweredError if the request was not answered, or not by the engine."""
    if end is None or end.finish_reason not in _ANSWERED:
        why = str(end).strip().replace("\n", " ") if end else "its stream had no end"
        raise NotAnsweredError(f"a request was not answered: {why}")
    if end.usage.cache_level in _CACHED:
        msg = "a request was answered from the completion cache: its engine can't be measured (set cache.enabled=false)"
        raise NotAnsweredError(msg)
    return Sample(
        ttft_ms=ttft_ms,
        total_ms=total_ms,
        num_tokens=end.usage.completion_tokens,
        prompt_tokens=end.usage.prompt_tokens,
        cached_prompt_tokens=end.usage.cached_prompt_tokens,
        drafted_tokens=end.usage.drafted_tokens,
        accepted_draft_tokens=end.usage.accepted_draft_tokens,
        decode_ms=end.timings.decode_ms,
    )


def cpu_s(process: psutil.Process) -> float:
    """Return the CPU seconds of a process, user and system."""
    times = process.cpu_times()
    return float(times.user + times.system)
