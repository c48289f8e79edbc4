"""This project's server as a contestant, called as editors call it, and its prompts, made in this process."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from completion_server.core.errors import ConfigError
from completion_server.core.request import Caller, Mode, Request
from completion_server.text.prompt.builder import PromptBuilder
from completion_server.text.prompt.loading import load_prompt_builder
from completion_server.text.prompt.settings import PromptSettings
from completion_server.text.prompt.templates import FimOrder
from loadtest import LoadTestError
from loadtest.bench.runner.contest import Contestant, EditingContestant
from loadtest.processes.child import FIRST_START_S, Child
from loadtest.targets import ClientSettings, TargetSpec
from loadtest.targets.grpc import GrpcTarget
from loadtest.traffic.typed import Trace

_COMMAND = (sys.executable, "-m", "completion_server")

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
    """A running server."""

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

        Raises StartError if the server did not start.
        """
        self.name = name
        command = [*_COMMAND, "serve", "--json", *flags(config, (*_OVERRIDES, _METRICS[has_metrics], *overrides))]
        child = Child(name, command, env=env, is_piped=True)
        self.ready = self._begin(child, lambda child: child.read_json(FIRST_START_S))

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid


def server_contestant(server: ServerProcess, settings: ClientSettings) -> EditingContestant:
    """Return a server of ours. Each run has a tenant of its own: tenants share no caches."""
    metrics = server.ready.get("metrics_address")
    metrics_url = f"http://{metrics}/metrics" if metrics else ""
    spec = TargetSpec(server.name, "grpc", (server.ready["address"],), metrics_url=metrics_url)
    return EditingContestant(
        server.name, server.process, lambda run: GrpcTarget(spec, replace(settings, tenant=f"run-{run}"))
    )


def cpu_s(process: psutil.Process) -> float:
    """Return the CPU seconds of a process, user and system."""
    times = process.cpu_times()
    return float(times.user + times.system)


def prompt_builder(effective: Mapping[str, Any]) -> PromptBuilder:
    """Return what builds the prompts of a server with an effective configuration.

    Of this, `engine.model`, `prompt` and `prompt_budget_tokens` are read. Raises ConfigError.
    """
    most = effective["prompt_budget_tokens"]
    try:
        settings = PromptSettings(**{**effective["prompt"], "max_prompt_tokens": most})
    except (TypeError, ValueError) as error:
        raise ConfigError(str(error)) from error
    return load_prompt_builder(effective["engine"]["model"], max_prompt_tokens=most, settings=settings)


def key_request(number: int, document: str, prefix: str, suffix: str, language_id: str, mode: Mode) -> Request:
    """Return the request of a key. The prompt depends on the document's last one: keys come as they are typed."""
    return Request(
        id=f"prompt-{number}",
        caller=Caller(user="benchmark", session=document),
        sequence=number,
        document_uri="",
        language_id=language_id,
        prefix=prefix,
        suffix=suffix,
        max_tokens=1,
        received_at=0.0,
        mode=mode,
    )


class ServerPrompts:
    """Makes this server's prompts for clients that send token ids."""

    def __init__(self, effective: Mapping[str, Any]) -> None:
        """Load the tokenizer, with a server's effective configuration.

        Raises ConfigError if there is none, or if its family has no prefix-suffix-middle format.
        """
        self._builder = prompt_builder(effective)
        template = self._builder.template
        if template.order is FimOrder.PREFIX_ONLY:
            model = effective["engine"]["model"]
            raise ConfigError(f"engine.model: {model} has no fill-in-the-middle markers to compare with")
        self.fim = f"{template.prefix}{{prefix}}{template.suffix}{{suffix}}{template.middle}"
        """The usual prompt, with {prefix} and {suffix}."""
        first = self._builder.build(key_request(0, "first", "a = ", "\n", "", Mode.MULTI_LINE))
        self.stop_token_ids: tuple[int, ...] = tuple(first.stop_token_ids)

    def sends(self, trace: Trace) -> Trace:
        """Return a trace with prompts; the prompt of each key depends on the document's last one."""
        language_id = trace.sessions[0].language_id
        keys = (
            key_request(number, name, each.prefix, each.suffix, language_id, Mode.MULTI_LINE)
            for number, (name, each) in enumerate(trace.documents(), start=1)
        )
        return trace.with_token_ids(self._builder.build(key).token_ids for key in keys)
