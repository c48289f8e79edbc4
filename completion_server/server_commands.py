"""The commands that need the server's configuration: `serve` and `check-config`."""

import asyncio
import gc
import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import uvloop

from completion_server.app import App, Ready, engine_arguments, make_engine_factory
from completion_server.client.options import DEFAULT_SERVER
from completion_server.config import Config, load_config
from completion_server.core import descriptors, safe_logging
from completion_server.core.errors import ConfigError
from completion_server.engine.interface import EngineDeadError
from completion_server.engine.processes import kill_children
from completion_server.model_limits import prompt_budget
from completion_server.rpc.server import check_addresses
from completion_server.telemetry import logs

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
    loaded = _load(config, overrides)
    logs.configure(loaded.log)
    safe_logging.install()

    def on_ready(ready: Ready) -> None:
        _freeze_startup_objects()
        click.echo(json.dumps(_ready_json(ready)) if as_json else _ready_line(ready))
        sys.stdout.flush()

    try:
        # Both before vLLM is imported, which takes seconds.
        limits = {
            "admission.max_sessions": loaded.admission.max_sessions,
            "server.max_connections": loaded.server.max_connections,
        }
        descriptors.check_limits(limits)
        check_addresses(loaded.server)
        make_engine = make_engine_factory(loaded)

        async def run() -> None:
            app = App(loaded, make_engine)
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

    \b
    Example:
        completion-server check-config --config deploy/local/server.toml
    """
    loaded = _load(config, overrides)
    try:
        budget = prompt_budget(loaded)
        args = engine_arguments(loaded)
    except ConfigError as error:
        _fail(str(error))
    if as_json:
        effective = {**asdict(loaded), "prompt_budget_tokens": budget, "engine_args": args}
        click.echo(json.dumps(effective, indent=2))
    else:
        click.echo(f"ok: {loaded.engine.model}, prompts of up to {budget} tokens, listening on {loaded.server.listen}")


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
    }


def _ready_line(ready: Ready) -> str:
    engine = ready.engine
    draft = f" draft={_short(engine.draft_model)} speculation: {ready.speculation}" if engine.draft_model else ""
    server = "" if ready.address == DEFAULT_SERVER else f" --server {ready.address}"
    command = f"printf 'for i in ra' | {_short(sys.argv[0])} complete{server} -"
    return f"ready: {ready.address} model={_short(engine.model)}{draft}; try: {command}"


def _short(name: str) -> str:
    """Return a path relative to the working directory; other names unchanged."""
    return os.path.relpath(name) if Path(name).is_relative_to(Path.cwd()) else name
