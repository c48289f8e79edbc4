"""The contestants: their servers, how their clients send a request, and what they call it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from completion_server.core.errors import ConfigError
from completion_server.core.request import Mode
from completion_server.prompt.templates import Order
from loadtest.bench.capacity.texts import ContextSize, with_sliding_window
from loadtest.bench.common.contest import Pausable, Turns
from loadtest.bench.common.prompts import PromptMaker
from loadtest.bench.common.server import ServerProcess
from loadtest.bench.peers.llama_server import LlamaServer
from loadtest.bench.peers.vllm_serve import VllmServe
from loadtest.targets import ClientSettings, Target, TargetSpec
from loadtest.targets.grpc import GrpcTarget
from loadtest.targets.http import HttpTarget
from loadtest.traffic.trace import Trace

OURS, VLLM, VLLM_SAME_PROMPTS, LLAMA = "this server", "vllm serve", "vllm serve, our prompts", "llama.cpp"

Sends = Callable[[Trace, ContextSize], Trace]


@dataclass(frozen=True, slots=True)
class CapacityContestant:
    """A server and its clients."""

    name: str
    process: Pausable
    connect: Callable[[str], AbstractAsyncContextManager[Target]]
    """Returns a target for one run, with the run's own name: no run finds the cached prompts of another."""
    sends: Sends
    """Returns a trace as its clients send it."""


class ServerPrompts:
    """Makes this server's prompts for clients that send token ids."""

    def __init__(self, effective: Mapping[str, Any]) -> None:
        """Load the tokenizer, with a server's effective configuration.

        Raises:
            ConfigError: there is no such tokenizer, or its family has no prefix-suffix-middle format.

        """
        section = {**effective["prompt"], "max_prompt_tokens": effective["prompt_budget_tokens"]}
        self._maker = PromptMaker(effective["engine"]["model"], section)
        template = self._maker.builder.template
        if template.order is Order.PREFIX_ONLY:
            msg = f"engine.model: {effective['engine']['model']} has no fill-in-the-middle markers to compare with"
            raise ConfigError(msg)
        self.fim = f"{template.prefix}{{prefix}}{template.suffix}{{suffix}}{template.middle}"
        """The usual prompt, with {prefix} and {suffix}."""
        self.stop_token_ids: tuple[int, ...] = self._maker.make("", "a = ", "\n")[0].stop_token_ids

    def sends(self, trace: Trace, _context: ContextSize) -> Trace:
        """Return a trace with prompts; the prompt of each key depends on the document's last one."""
        language_id = trace.sessions[0].language_id

        def token_ids() -> Iterator[Sequence[int]]:
            for name, request in trace.documents():
                made, _build_ms = self._maker.make(
                    "", request.prefix, request.suffix, session=name, language_id=language_id, mode=Mode.MULTI_LINE
                )
                yield made.token_ids

        return trace.with_token_ids(token_ids())


@dataclass(frozen=True, slots=True)
class Setup:
    """What the contestants are started with."""

    config: Path
    overrides: Sequence[str]
    effective: Mapping[str, Any]
    llama_server: Path | None
    """The binary; without it this contestant is left out."""
    max_tokens: int


async def start(stack: AsyncExitStack, turns: Turns, setup: Setup, console: Console) -> list[CapacityContestant]:
    """Start the servers, one after another; each rests as soon as it is ready.

    Raises:
        StartError: one did not start.
        ConfigError: the prompts can't be made.

    """
    prompts, settings = ServerPrompts(setup.effective), ClientSettings(setup.max_tokens)
    with console.status(f"starting: {OURS}"):
        server = ServerProcess(setup.config, setup.overrides)
        stack.callback(server.stop)
        turns.add(server.process)
    with console.status(f"starting: {VLLM}, which may compile the model"):
        serve = await stack.enter_async_context(VllmServe(setup.effective, has_own_defaults=True))
        turns.add(serve.process)
    found = [_ours(server, settings), *_vllm(serve, prompts, settings)]
    if setup.llama_server is not None:
        with console.status(f"starting: {LLAMA}"):
            llama = LlamaServer(setup.llama_server, setup.effective)
            stack.callback(llama.stop)
            turns.add(llama.process)
        found.append(_llama(llama, settings))
    return found


def _ours(server: ServerProcess, settings: ClientSettings) -> CapacityContestant:
    spec = TargetSpec(OURS, "grpc", (server.ready["address"],))
    return CapacityContestant(
        OURS, server.process, lambda _run: GrpcTarget(spec, settings), lambda trace, _context: trace
    )


def _vllm(serve: VllmServe, prompts: ServerPrompts, settings: ClientSettings) -> list[CapacityContestant]:
    host = serve.url.removeprefix("http://")

    def connector(name: str, options: Mapping[str, str]) -> Callable[[str], HttpTarget]:
        spec = TargetSpec(name, "openai+http", (host,), {"model": serve.model, **options})
        ends = {"stop_token_ids": list(prompts.stop_token_ids), "add_special_tokens": False}
        return lambda run: HttpTarget(spec, settings, ends | {"cache_salt": f"{name} {run}"})

    return [
        CapacityContestant(VLLM, serve.process, connector(VLLM, {"fim": prompts.fim}), with_sliding_window),
        CapacityContestant(VLLM_SAME_PROMPTS, serve.process, connector(VLLM_SAME_PROMPTS, {}), prompts.sends),
    ]


def _llama(llama: LlamaServer, settings: ClientSettings) -> CapacityContestant:
    spec = TargetSpec(LLAMA, "llama+http", (llama.host,))
    return CapacityContestant(LLAMA, llama.process, lambda _run: HttpTarget(spec, settings), with_sliding_window)
