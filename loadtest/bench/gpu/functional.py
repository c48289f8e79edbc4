"""Checks that the server works on this machine: greedy text with drafts, aborts, a restart, an end without remains.

The models are the embedded ones, which are trained: only real text shows whether drafts change it. A step of another
size may round differently, on a GPU more than on a CPU. How many texts that alone changes is measured too: without
drafts, the same requests alone and several at once.
"""

import asyncio
import contextlib
import itertools
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console

from completion.v1 import completion_pb2 as pb
from completion_client import CompletionClient, ServiceError
from loadtest.bench.runner.benchmark import ServerOptions
from loadtest.bench.runner.server import SERVES_ALL, ServerProcess
from loadtest.processes.child import FIRST_START_S
from loadtest.targets import TargetError
from loadtest.targets.speculation import Operator
from loadtest.traffic.scenario import Scenario
from loadtest.traffic.typed import TypedRequest
from loadtest.tuning.replay import traffic_of

K = 4
DRAFTS = (f"engine.draft_model={Path('draft_model/embedded').resolve()}", "speculation.mode=fixed")
"""Of all servers unless they have others: a draft model, whose K only this trial changes."""
MAX_LOST_SHARE = 0.1
"""Drafts may change at most this share of texts more than rounding alone does."""
_DOCUMENTS = {"prefix_chars": 1200, "suffix_chars": 300}
_TIMEOUT_S, _ABORTED_S, _END_S = 60.0, 10.0, 60.0
_LEFT_MIB = 64
"""GPU memory that the driver may still count a moment after the last process has ended."""


@dataclass(frozen=True, slots=True)
class ServerVariant:
    """A server to try."""

    overrides: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    control: str = ""
    """The server without drafts on the same model runner, with which this one is compared; "" for such a server."""


RUNNER = "VLLM_USE_V2_MODEL_RUNNER"
_NO_DRAFTS = "engine.num_speculative_tokens=0"
_DRAFTS = f"engine.num_speculative_tokens={K}"
VARIANTS = {
    "no draft": ServerVariant((_NO_DRAFTS,)),
    "n-gram": ServerVariant((_DRAFTS, "engine.draft_model=ngram"), control="no draft"),
    "no draft, older runner": ServerVariant((_NO_DRAFTS,), {RUNNER: "0"}),
    "full graphs": ServerVariant((_DRAFTS, "engine.full_cuda_graphs=true"), control="no draft, older runner"),
    "schedule": ServerVariant((_DRAFTS,), control="no draft, older runner"),
}
"""The servers. n-gram drafts have the newer runner, a draft model the older one (VLLM_USE_V2_MODEL_RUNNER=0)."""
LAST = "schedule"
"""The server that is also aborted, killed and stopped."""


async def measure(options: ServerOptions, console: Console) -> dict[str, Any]:
    """Start the servers one after another, try each, and return `figures`."""
    scenario = Scenario.of({"name": "functional", "documents": _DOCUMENTS})
    num_texts, max_tokens, together = (4, 16, 2) if options.quick else (24, 48, 8)
    texts = [each.opening for each in (await traffic_of(scenario, num_texts, "texts")).sessions]
    before_mib, measured = used_mib(), dict[str, Any]()
    for name, variant in VARIANTS.items():
        with console.status(f"starting: {name}"):
            settings = (*SERVES_ALL, *DRAFTS, *options.overrides, *variant.overrides)
            server = ServerProcess(options.config, settings, re.sub(r"\W+", "-", name), variant.env)
        async with (
            server,
            CompletionClient(server.ready["address"]) as client,
            Operator(server.ready["admin_address"]) as operator,
        ):
            tried = _ServerTrial(server.pid, client, operator, texts, max_tokens, together)
            measured[name] = {"answers": await tried.answers(changes_k=bool(variant.control))}
            if name == LAST:
                measured[name] |= {"aborted_s": await tried.abort(), "restarted_s": await tried.restart()}
                measured[name] |= await tried.end(before_mib)
    return figures(measured)


@dataclass(slots=True)
class _ServerTrial:
    """A running server, as its editors and its operator see it."""

    pid: int
    client: CompletionClient
    operator: Operator
    texts: Sequence[TypedRequest]
    max_tokens: int
    together: int

    async def answers(self, *, changes_k: bool) -> dict[str, list[str]]:
        """Return greedy answers by how they were asked for: alone at each K and over changes of K, or together."""
        if not changes_k:
            return {"alone": await self._ask_all(1), "together": await self._ask_all(self.together)}
        found = {}
        async with self.operator.borrowed():
            for k in (K, K // 2, 0):
                await self.operator.put(((1, 1, k),))
                found[f"K = {k}"] = await self._ask_all(1)
            async with self._changing():
                found["K changes"] = await self._ask_all(1)
        return found

    @contextlib.asynccontextmanager
    async def _changing(self) -> AsyncIterator[None]:
        """Change K again and again while the block runs."""

        async def change() -> None:
            for k in itertools.cycle((0, K, 1, K // 2)):
                await self.operator.put(((1, 1, k),))
                await asyncio.sleep(0.02)

        task = asyncio.create_task(change())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def abort(self) -> float | None:
        """Hang up on many generations; return the time until no slot is taken, None if some stay taken."""
        begun = asyncio.Event()
        texts = self.texts[: self.together]
        tasks = [asyncio.create_task(self._ask(text, lambda _text: begun.set())) for text in texts]
        await asyncio.wait_for(begun.wait(), _TIMEOUT_S)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        aborted_at = time.monotonic()
        while (await self.operator.status()).running_requests:
            if time.monotonic() - aborted_at > _ABORTED_S:
                return None
            await asyncio.sleep(0.01)
        return round(time.monotonic() - aborted_at, 3)

    async def restart(self) -> float | None:
        """Kill the engine; return the time until the server answers again, None if it does not."""
        for process in psutil.Process(self.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        killed_at = time.monotonic()
        while time.monotonic() - killed_at < FIRST_START_S:
            with contextlib.suppress(ServiceError, TargetError):
                restarts = (await self.operator.status()).engine_restarts
                if await self._ask(self.texts[0]) and restarts:
                    return round(time.monotonic() - killed_at, 1)
            await asyncio.sleep(0.25)
        return None

    async def end(self, before_mib: int) -> dict[str, Any]:
        """Send SIGTERM; return what is left of the server's processes and of its GPU memory."""
        own = psutil.Process(self.pid)
        family = [own, *own.children(recursive=True)]
        os.kill(own.pid, signal.SIGTERM)
        begun = time.monotonic()
        _gone, left = await asyncio.to_thread(psutil.wait_procs, family, _END_S)
        ended_s = round(time.monotonic() - begun, 2)
        return {"ended_s": ended_s, "left_processes": len(left), "left_gpu_mib": max(0, used_mib() - before_mib)}

    async def _ask_all(self, num_callers: int) -> list[str]:
        callers = asyncio.Semaphore(num_callers)

        async def ask(text: TypedRequest) -> str:
            async with callers:
                return await self._ask(text)

        return await asyncio.gather(*map(ask, self.texts))

    async def _ask(self, text: TypedRequest, on_text: Callable[[str], object] | None = None) -> str:
        request = pb.CompleteRequest(
            session_id=f"{text.session}-{time.monotonic_ns()}",
            language_id="python",
            prefix=text.prefix,
            suffix=text.suffix,
            mode=pb.MODE_MULTI_LINE,
            max_tokens=self.max_tokens,
            temperature=0.0,
            without_completion_cache=True,
        )
        return (await self.client.complete(request, timeout_s=_TIMEOUT_S, on_text=on_text)).text


def ask_driver(field: str) -> str:
    """Return a field of the first GPU by nvidia-smi, "" without a GPU."""
    if shutil.which("nvidia-smi") is None:
        return ""
    command = ["nvidia-smi", "--id=0", f"--query-gpu={field}", "--format=csv,noheader,nounits"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def used_mib() -> int:
    """Return the memory in use on the first GPU, 0 without a GPU."""
    used = ask_driver("memory.used")
    return int(used) if used.isdecimal() else 0


def figures(measured: Mapping[str, Any]) -> dict[str, Any]:
    """Return how many texts are as those without a draft, and whether everything is as it should be.

    A server's texts are compared with those of its control, asked for alone.
    """
    same, lost = dict[str, float](), list[float]()
    for name, variant in VARIANTS.items():
        reference = measured[variant.control or name]["answers"]["alone"]
        for how, texts in measured[name]["answers"].items():
            share = sum(map(str.__eq__, texts, reference)) / len(reference)
            if how != "alone":
                same[f"{name}, {how}"] = share
            if variant.control:
                together = measured[variant.control]["answers"]["together"]
                lost.append(sum(map(str.__eq__, together, reference)) / len(reference) - share)
    last = measured[LAST]
    passed = {
        "greedy": round(max(lost), 3) <= MAX_LOST_SHARE,
        "abort": last["aborted_s"] is not None,
        "restart": last["restarted_s"] is not None,
        "end": not last["left_processes"] and last["left_gpu_mib"] <= _LEFT_MIB,
    }
    times = {key: value for key, value in last.items() if key != "answers"}
    return times | {"same_as_no_draft": same, "passed": passed, "is_passed": all(passed.values())}
