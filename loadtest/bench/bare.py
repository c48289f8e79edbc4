"""Bare parts of a server, the bounds for what any server can do: vLLM's AsyncLLM, and a gRPC server without logic.

Run as a module, this is the worker process of one of them: `python -m loadtest.bench.bare engine`, or `grpc DELTAS`.
The engine's worker answers each JSON line of token ids with the times of the generations, measured in the process that
calls `generate`. Only the worker imports vllm.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import asdict, dataclass
from typing import IO, Any

import grpc
import uvloop

from completion.v1 import completion_pb2 as pb
from completion_server.engine.vllm.environment import engine_environment
from loadtest.bench.runner.contest import Contestant
from loadtest.processes.child import FIRST_START_S, Child

_BLOCK_S, _START_S = 300.0, 60.0
_OWN_CLASSES = ("scheduler_cls", "worker_extension_cls")
"""Arguments with which the server changes how its own engine speculates."""
_SPECULATIVE, _SCHEDULE = "speculative_config", "num_speculative_tokens_per_batch_size"


def engine_env(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment of an engine, from a server's effective configuration.

    As for the server's engine: processes are spawned, and the model runner is the one for its drafts.
    """
    own = engine_environment(config["engine_args"].get(_SPECULATIVE), os.environ)
    return own | {"VLLM_CPU_KVCACHE_SPACE": str(config["engine"].get("cpu_kv_cache_gib", 1))}


def peer_args(engine_args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the engine arguments that serve a peer best, from those of the server.

    Only the server changes K. With a schedule of K vLLM would have no full CUDA graphs on a GPU.
    """
    args = {name: value for name, value in engine_args.items() if name not in _OWN_CLASSES}
    if args.get(_SPECULATIVE):
        args[_SPECULATIVE] = {name: value for name, value in args[_SPECULATIVE].items() if name != _SCHEDULE}
    return args


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    """A prompt, and where its completion ends."""

    token_ids: tuple[int, ...]
    max_tokens: int
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end the completion besides the model's own end token."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A completion as its caller measured it."""

    ttft_ms: float | None
    """Time from the request to the first visible text; None without text."""
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Block:
    """Completions that ran together, in the order of their prompts."""

    samples: tuple[Sample, ...]
    wall_s: float

    @property
    def tokens_per_s(self) -> float:
        """Rate of all completions together."""
        return sum(sample.num_tokens for sample in self.samples) / self.wall_s


async def _closed_loop(
    prompts: Sequence[BenchPrompt], concurrency: int, ask: Callable[[BenchPrompt], Awaitable[Sample]]
) -> Block:
    """Complete each prompt once; each of `concurrency` callers sends its next one as soon as it has its answer."""
    callers, start = asyncio.Semaphore(concurrency), time.perf_counter()

    async def ask_in_turn(prompt: BenchPrompt) -> Sample:
        async with callers:
            return await ask(prompt)

    samples = await asyncio.gather(*map(ask_in_turn, prompts))
    return Block(tuple(samples), time.perf_counter() - start)


class BareEngine(Contestant):
    """The engine's worker as a contestant."""

    name = "engine alone"

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Start the worker with a server's effective configuration and wait until the engine is loaded.

        Raises StartError if the worker did not start.
        """
        child = Child("bare-engine", [sys.executable, "-m", __name__, "engine"], env=engine_env(config), is_piped=True)
        self._begin(child, lambda child: child.ask(config["engine_args"], FIRST_START_S))

    def run(self, prompts: Sequence[BenchPrompt], concurrency: int) -> Block:
        """Complete each prompt once, `concurrency` at a time."""
        requests = [asdict(each) for each in prompts]
        answer = self.process.ask({"concurrency": concurrency, "requests": requests}, _BLOCK_S)
        return Block(tuple(Sample(**sample) for sample in answer["samples"]), answer["wall_s"])


class _Worker:
    """The engine, in the worker's process."""

    def __init__(self, engine_args: Mapping[str, Any]) -> None:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        self.llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**engine_args))
        self._num_asked = 0

    async def answer(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Complete a block of prompts."""
        prompts = [BenchPrompt(**each) for each in question["requests"]]
        return asdict(await _closed_loop(prompts, question["concurrency"], self._ask))

    async def _ask(self, prompt: BenchPrompt) -> Sample:
        from vllm.inputs import TokensPrompt
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        self._num_asked += 1
        ids = TokensPrompt(prompt_token_ids=list(prompt.token_ids))
        ttft_ms: float | None = None
        num_tokens = 0
        start = time.perf_counter()
        sampling = SamplingParams(
            max_tokens=prompt.max_tokens,
            temperature=0.0,
            stop_token_ids=list(prompt.stop_token_ids),
            output_kind=RequestOutputKind.DELTA,
        )
        async with aclosing(self.llm.generate(ids, sampling, f"bare-{self._num_asked}")) as results:
            async for result in results:
                num_tokens += len(result.outputs[0].token_ids)
                if ttft_ms is None and result.outputs[0].text.strip():
                    ttft_ms = (time.perf_counter() - start) * 1000
        return Sample(ttft_ms, num_tokens)


async def _serve_engine(answers: IO[str]) -> None:
    """Answer requests until the input ends. `answers` is a separate pipe, since vLLM writes to standard output."""
    worker = _Worker(json.loads(await asyncio.to_thread(sys.stdin.readline)))
    answer: dict[str, Any] = {"event": "ready"}
    try:
        while True:
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
            if not (line := await asyncio.to_thread(sys.stdin.readline)):
                return
            answer = await worker.answer(json.loads(line))
    finally:
        worker.llm.shutdown()


_SERVICE = pb.DESCRIPTOR.services_by_name["CompletionService"].full_name
_MAX_PENDING = 20_000
_DELTA = pb.Delta(text="result = load(")
_END = pb.End(
    finish_reason=pb.FINISH_REASON_STOP,
    usage=pb.Usage(
        prompt_tokens=600, cached_prompt_tokens=560, completion_tokens=21, drafted_tokens=25, accepted_draft_tokens=16
    ),
    timings=pb.Timings(queue_ms=1.5, tokenise_ms=0.25, prefill_ms=48.5, decode_ms=41.5, total_ms=92.25),
    text="names)\n    value = max(node)",
)


@contextmanager
def bare_server(deltas: float) -> Iterator[tuple[str, int]]:
    """Run a gRPC server that answers each request with constant messages; yield its address and process id.

    It sends `deltas` deltas before each end of a session's request on average. Raises StartError if it did not start.
    """
    with Child("bare", (sys.executable, "-m", __name__, "grpc", str(deltas)), is_piped=True) as child:
        yield child.read_json(_START_S)["address"], child.pid


async def _serve_grpc(deltas: float) -> None:
    """Serve on a free port of the loopback interface until killed; the first line of output is its address, as JSON."""
    due = 0.0

    async def session(_messages: Any, context: Any) -> None:  # noqa: ANN401 - gRPC has no types for them
        nonlocal due
        while (message := await context.read()) is not grpc.aio.EOF:
            if not message.HasField("complete"):
                continue
            sequence = message.complete.sequence
            due += deltas
            while due >= 1:
                due -= 1
                await context.write(pb.SessionResponse(sequence=sequence, delta=_DELTA))
            await context.write(pb.SessionResponse(sequence=sequence, end=_END))

    async def complete(_request: Any, context: Any) -> None:  # noqa: ANN401 - gRPC has no types for them
        await context.write(pb.CompleteResponse(end=_END))

    pending = ("grpc.server.max_pending_requests", "grpc.server.max_pending_requests_hard_limit")
    server = grpc.aio.server(options=[(name, _MAX_PENDING) for name in pending])
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Session": grpc.stream_stream_rpc_method_handler(
            session, pb.SessionRequest.FromString, pb.SessionResponse.SerializeToString
        ),
        "Complete": grpc.unary_stream_rpc_method_handler(
            complete, pb.CompleteRequest.FromString, pb.CompleteResponse.SerializeToString
        ),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    sys.stdout.write(json.dumps({"address": f"127.0.0.1:{port}"}) + "\n")
    sys.stdout.flush()
    await server.wait_for_termination()


if __name__ == "__main__":
    if sys.argv[1] == "grpc":
        asyncio.run(_serve_grpc(float(sys.argv[2])))
    else:
        pipe = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        uvloop.run(_serve_engine(pipe))
