"""vLLM's AsyncLLM called directly, without a server: the upper bound for any server.

Run as a module, this is a worker process. It loads the engine with the arguments of a JSON line, then answers each JSON
line of token ids with the times of the generations, measured in the process that calls `generate`. `BareEngine` is the
client of that worker. Only the worker imports vllm.
"""

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict
from typing import IO, Any

from completion_server.engine.vllm.drafts.names import SET_LOOKUP
from completion_server.engine.vllm.environment import engine_environment
from loadtest.bench.runner.contest import Contestant
from loadtest.bench.runner.loops import BenchPrompt, Block, Sample, closed_loop
from loadtest.processes.child import FIRST_START_S, Child

_BLOCK_S = 300.0
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


class BareEngine(Contestant):
    """The worker as a contestant."""

    name = "engine alone"

    def __init__(
        self, config: Mapping[str, Any], *, env: Mapping[str, str] | None = None, changes_k: bool = False
    ) -> None:
        """Start the worker with a server's effective configuration and wait until the engine is loaded.

        `env` are variables of this engine alone. `changes_k` gives the engine the server's scheduler, for `set_k`.
        Raises StartError if the worker did not start.
        """
        command = [sys.executable, "-m", __name__]
        child = Child("bare-engine", command, env={**engine_env(config), **(env or {})}, is_piped=True)
        question = {"engine_args": config["engine_args"], "changes_k": changes_k}
        self._begin(child, lambda child: child.ask(question, FIRST_START_S))

    async def run(self, prompts: Sequence[BenchPrompt], concurrency: int) -> Block:
        """Complete each prompt once, `concurrency` at a time."""
        requests = [asdict(each) for each in prompts]
        answer = self._child.ask({"concurrency": concurrency, "requests": requests}, _BLOCK_S)
        return Block(tuple(Sample(**sample) for sample in answer["samples"]), answer["wall_s"])

    def set_k(self, k: int) -> None:
        """Change K for all batch sizes, from the engine's next step on."""
        self._child.ask({"k": k}, _BLOCK_S)


class _Worker:
    """The engine, in the worker's process."""

    def __init__(self, engine_args: Mapping[str, Any], *, changes_k: bool) -> None:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.usage.usage_lib import UsageContext
        from vllm.v1.engine.async_llm import AsyncLLM

        config = AsyncEngineArgs(**engine_args).create_engine_config(UsageContext.ENGINE_CONTEXT)
        scheduler = config.scheduler_config
        if changes_k:
            name = "LookupAsyncScheduler" if scheduler.async_scheduling else "LookupScheduler"
            scheduler.scheduler_cls = f"completion_server.engine.vllm.drafts.schedulers.{name}"
        self._max_num_seqs = scheduler.max_num_seqs
        self.llm = AsyncLLM.from_vllm_config(config)
        self._has_text = not engine_args.get("skip_tokenizer_init")
        self._num_asked = 0

    async def answer(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Change K, or complete a block of prompts."""
        if "k" not in question:
            prompts = [BenchPrompt(**each) for each in question["requests"]]
            return asdict(await closed_loop(prompts, question["concurrency"], self._ask))
        row = [1, *[question["k"]] * self._max_num_seqs]
        if reason := await self.llm.engine_core.call_utility_async(SET_LOOKUP, row):
            raise RuntimeError(reason)
        return {"event": "set"}

    async def _ask(self, _caller: int, prompt: BenchPrompt) -> Sample:
        from vllm.inputs import TokensPrompt
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        self._num_asked += 1
        ids = TokensPrompt(prompt_token_ids=list(prompt.token_ids))
        ttft_ms: float | None = None
        num_tokens = cached = 0
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
                cached = result.num_cached_tokens or 0
                if ttft_ms is None and (result.outputs[0].text.strip() or not self._has_text):
                    ttft_ms = (time.perf_counter() - start) * 1000
                if prompt.is_enough(num_tokens):
                    break
        total_ms = (time.perf_counter() - start) * 1000
        return Sample(ttft_ms, total_ms, num_tokens, len(prompt.token_ids), cached)


async def _serve(answers: IO[str]) -> None:
    """Answer requests until the input ends. `answers` is a separate pipe, since vLLM writes to standard output."""

    def say(answer: Mapping[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    worker = _Worker(**json.loads(await asyncio.to_thread(sys.stdin.readline)))
    try:
        say({"event": "ready"})
        while line := await asyncio.to_thread(sys.stdin.readline):
            say(await worker.answer(json.loads(line)))
    finally:
        worker.llm.shutdown()


if __name__ == "__main__":
    import uvloop

    pipe = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(_serve(pipe))
