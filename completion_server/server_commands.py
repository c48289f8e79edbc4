"""The commands that need the server's configuration: `serve` and `check-config`."""

import asyncio
import gc
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import uvloop

from completion_server.client.options import DEFAULT_SERVER
from completion_server.composition.app import App, Ready
from completion_server.composition.engine_factory import engine_arguments, make_engine_factory
from completion_server.composition.model_limits import load_prompts, prompt_budget
from completion_server.config import Config, load_config
from completion_server.core import descriptors, safe_logging
from completion_server.core.errors import ConfigError
from completion_server.engine.interface import EngineDeadError
from completion_server.engine.processes import kill_children
from completion_server.engine.settings import EngineSettings
from completion_server.engine.start_times import StartTimes
from completion_server.rpc.server import check_ports, check_tls
from completion_server.rpc.settings import TlsSettings
from completion_server.telemetry import logs
from completion_server.telemetry.tracing.tracing import check_usable

logger = logging.getLogger(__name__)

_WHOLE_START = "server: "
"""Begins the key under which the duration of the whole start is kept."""
_GC_THRESHOLDS = (10_000, 50, 100)
"""Allocations before a collection of the youngest generation, and collections before one of the next older."""


def _config_options(command: Callable[..., None]) -> Callable[..., None]:
    path = click.Path(exists=True, dir_okay=False, path_type=Path)
    command = click.option(
        "--set", "overrides", multiple=True, metavar="SECTION.KEY=VALUE", help="Set one key; may be repeated."
    )(command)
    return click.option("--config", "-c", type=path, help="TOML file; environment and --set go over it.")(command)


@click.command()
@_config_options
@click.option("--json", "as_json", is_flag=True, help="Print the ready line as JSON.")
def serve(config: Path | None, overrides: tuple[str, ...], as_json: bool) -> None:
    """Run a server until SIGTERM or Ctrl-C, which lets accepted requests finish; a second one ends it at once.

    \b
    Examples:
        completion-server serve --config deploy/local/server.toml
        completion-server serve --set engine.model=Qwen/Qwen2.5-Coder-7B --set server.listen=127.0.0.1:6000
        COMPLETION_SERVER__ENGINE__NUM_SPECULATIVE_TOKENS=0 completion-server serve --config server.toml
    """
    began_at = time.monotonic()
    loaded = _load(config, overrides)
    logs.configure(loaded.log)
    safe_logging.install()
    start_times = StartTimes(_start_times_path(os.environ))
    _announce(loaded.engine, start_times.last_s(_WHOLE_START + loaded.engine.start_key))

    def on_ready(ready: Ready) -> None:
        start_times.record(_WHOLE_START + loaded.engine.start_key, time.monotonic() - began_at)
        _freeze_startup_objects()
        click.echo(json.dumps(_ready_json(ready)) if as_json else _ready_line(ready, loaded.server.tls))
        sys.stdout.flush()

    try:
        check_ports(loaded.server)  # before vLLM is imported, which takes seconds
        _check(loaded)
        make_engine = make_engine_factory(loaded)

        async def run() -> None:
            app = App(loaded, make_engine, start_times=start_times)
            asyncio.get_running_loop().set_exception_handler(safe_logging.log_loop_error)
            _install_signal_handlers(app)
            await app.run(on_ready)

        uvloop.run(run())
    except (ConfigError, EngineDeadError) as error:
        _fail(str(error))


@click.command("check-config")
@_config_options
@click.option("--json", "as_json", is_flag=True, help="Print the whole configuration as JSON.")
def check_config(config: Path | None, overrides: tuple[str, ...], as_json: bool) -> None:
    """Check whether a configuration can be used, without loading a model. Exit status 0 if so, 2 if not.

    `serve` makes the same checks at its start, and also checks that the ports are free.

    \b
    Example:
        completion-server check-config --config deploy/local/server.toml
    """
    loaded = _load(config, overrides)
    try:
        args = _check(loaded)
        budget = prompt_budget(loaded)
        load_prompts(loaded)
    except ConfigError as error:
        _fail(str(error))
    if as_json:
        effective = {**asdict(loaded), "prompt_budget_tokens": budget, "engine_args": args}
        click.echo(json.dumps(effective, indent=2))
    else:
        click.echo(f"ok: {loaded.engine.model}, prompts of up to {budget} tokens, listening on {loaded.server.listen}")


def _check(config: Config) -> dict[str, Any]:
    """Make the checks of `serve` and `check-config` that need this machine or vLLM; return vLLM's arguments.

    The prompts are checked where they are loaded.

    Raises:
        ConfigError: the configuration can't be used.

    """
    limits = {
        "admission.max_sessions": config.admission.max_sessions,
        "server.max_connections": config.server.max_connections,
    }
    descriptors.check_limits(limits)
    check_tls(config.server)
    check_usable(config.traces, os.environ)
    return engine_arguments(config)


def _announce(engine: EngineSettings, last_s: float | None) -> None:
    """Log what is loading and how long that took last time: the start is silent for most of a minute otherwise."""
    draft = f" with the draft model {_short(engine.draft_model)}" if engine.draft_model else ""
    may_compile = engine.kind == "vllm" and not engine.enforce_eager
    first = "the first start with these settings" + (", which may compile the model" if may_compile else "")
    last = first if last_s is None else f"the last start took {last_s:.0f} s"
    model = f" on {_short(engine.model)}" if engine.model else ""
    logger.info("starting the %s engine%s%s; %s", engine.kind, model, draft, last)


def _start_times_path(environ: Mapping[str, str]) -> Path | None:
    """Return the file for durations of starts, in the user's cache folder; None if the user has none."""
    cache = environ.get("XDG_CACHE_HOME", "")
    if not Path(cache).is_absolute():  # unset, or a path that the XDG specification says to ignore
        if not (home := environ.get("HOME")):
            return None
        cache = f"{home}/.cache"
    return Path(cache) / "completion-server" / "start-times.json"


def _freeze_startup_objects() -> None:
    """Keep the garbage collector from scanning all imported and loaded objects, which takes 200 ms.

    Reference counting frees the objects of a request, except a few cycles of libraries, which die young.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


def _install_signal_handlers(app: App) -> None:
    """Drain on SIGTERM and Ctrl-C. Before the server has served, or on a second signal, end at once with the engine."""

    def end() -> None:
        if app.is_draining or not app.has_served:
            kill_children()
            os._exit(1 if app.is_draining else 0)
        app.drain()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)


def _load(path: Path | None, overrides: tuple[str, ...]) -> Config:
    try:
        return load_config(path, overrides, os.environ)
    except ConfigError as error:
        _fail(str(error))
        raise AssertionError from error


def _fail(message: str) -> None:
    click.echo("\n".join(f"completion-server: {line}" for line in message.splitlines()), err=True)
    sys.exit(2)


def _ready_json(ready: Ready) -> dict[str, Any]:
    return {
        "event": "ready",
        "address": ready.address,
        "admin_address": ready.admin_address,
        "metrics_address": ready.metrics_address,
        "model": ready.engine.model,
        "draft_model": ready.engine.draft_model,
        "num_speculative_tokens": ready.engine.num_speculative_tokens,
        "speculation": ready.speculation,
        "prompt_template": ready.prompt_template,
        "slots": ready.load.num_slots,
        "max_slots": ready.load.max_slots,
        "slots_reason": ready.load.slots_reason,
    }


def _ready_line(ready: Ready, tls: TlsSettings) -> str:
    engine, load = ready.engine, ready.load
    draft = f" draft={_short(engine.draft_model)}, {ready.speculation}" if engine.draft_model else ""
    slots = f" slots={load.num_slots}" + (f" of {load.max_slots} ({load.slots_reason})" if load.slots_reason else "")
    command = f"printf 'if __name__ == ' | {_program()} complete{_connection(ready.address, tls)} -"
    return f"ready: {ready.address} model={_short(engine.model)}{draft}{slots}; try: {command}"


def _connection(address: str, tls: TlsSettings) -> str:
    """Return the options with which a client reaches a listener."""
    options = "" if address == DEFAULT_SERVER else f" --server {address}"
    if tls.certificate:
        options += f" --tls-ca {_short(tls.certificate)}"  # a certificate is an authority for itself
    if tls.client_ca:
        options += " --tls-cert CLIENT_CERTIFICATE --tls-key ITS_KEY"
    return options


def _program() -> str:
    """Return the command with which the server was started."""
    if Path(sys.argv[0]).name == "__main__.py":
        return f"{_short(sys.executable)} -m completion_server"
    return _short(sys.argv[0])


def _short(name: str) -> str:
    """Return a path relative to the working directory; other names unchanged."""
    return os.path.relpath(name) if Path(name).is_relative_to(Path.cwd()) else name
