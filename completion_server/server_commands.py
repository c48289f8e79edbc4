"""The commands `serve` and `check-config`, which need the configuration, and the line that a server is ready."""

import asyncio
import atexit
import contextlib
import json
import logging
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click
import uvloop

from completion_server.api.rpc.listening import check_ports
from completion_server.app.checks import check, left_open, not_checked, warn_of_exposure
from completion_server.app.models import load_edits, load_prompts, prompt_budget, with_revisions
from completion_server.app.shutdown import Shutdown
from completion_server.client.options import DEFAULT_SERVER
from completion_server.config import Config, load_config
from completion_server.core import safe_logging
from completion_server.core.addresses import is_loopback, is_unix_socket, split_address
from completion_server.core.certificates import hosts_of
from completion_server.core.errors import ConfigError
from completion_server.core.files import cache_folder
from completion_server.core.process import freeze_startup_objects, switch_off_core_dumps
from completion_server.engine.interface import EngineDeadError
from completion_server.engine.processes import kill_children
from completion_server.engine.settings import EngineSettings
from completion_server.engine.start_times import StartTimes, progress
from completion_server.ops import logs

if TYPE_CHECKING:
    from completion_server.app.app import App, Ready

logger = logging.getLogger(__name__)

_WHOLE_START = "server: "
"""Begins the key under which the duration of the whole start is kept."""

_LAST_WORDS_S = 1.0
"""How long it may take to say why a stop is given up."""
_ANY_HOST = ("0.0.0.0", "::")
_LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")


def _config_options(command: Callable[..., None]) -> Callable[..., None]:
    path = click.Path(exists=True, dir_okay=False, path_type=Path)
    command = click.option(
        "--set", "overrides", multiple=True, metavar="SECTION.KEY=VALUE", help="Set one key; may be repeated."
    )(command)
    insecure = "Let other machines reach listeners without TLS or authentication (server.insecure)."
    command = click.option("--insecure", is_flag=True, help=insecure)(command)
    return click.option("--config", "-c", type=path, help="TOML file; environment and --set go over it.")(command)


@click.command()
@_config_options
@click.option("--json", "as_json", is_flag=True, help="Print the ready line as JSON.")
def serve(config: Path | None, overrides: tuple[str, ...], insecure: bool, as_json: bool) -> None:
    """Run a server until SIGTERM or Ctrl-C, which lets accepted requests finish; a second one ends it at once.

    \b
    Examples:
        completion-server serve --config deploy/local/server.toml
        completion-server serve --set engine.model=Qwen/Qwen2.5-Coder-7B --set server.listen=127.0.0.1:6000
        COMPLETION_SERVER__ENGINE__NUM_SPECULATIVE_TOKENS=0 completion-server serve --config server.toml
    """
    began_at = time.monotonic()
    loaded = _load(config, overrides, insecure=insecure)
    logs.configure(loaded.log)
    safe_logging.install()
    switch_off_core_dumps()
    start_times = StartTimes(_start_times_path(os.environ))
    _announce(loaded.engine, start_times.last_s(_WHOLE_START + loaded.engine.start_key))

    def on_ready(ready: "Ready") -> None:
        start_times.record(_WHOLE_START + loaded.engine.start_key, time.monotonic() - began_at)
        freeze_startup_objects()
        click.echo(json.dumps(ready_json(ready)) if as_json else ready_line(ready, loaded))
        sys.stdout.flush()

    try:
        check_ports(loaded.server)
        check(loaded, os.environ)
        with progress("reading the models' files and importing the engine"):
            loaded = with_revisions(loaded)
            # After the checks, because these imports take seconds.
            from completion_server.app.app import App
            from completion_server.app.engine_factory import make_engine_factory

            make_engine = make_engine_factory(loaded)

        async def run() -> None:
            shutdown = Shutdown(loaded.server.stop_timeout_s, _give_up_stop)
            app = App(loaded, make_engine, start_times=start_times, shutdown=shutdown)
            asyncio.get_running_loop().set_exception_handler(safe_logging.log_loop_error)
            _install_signal_handlers(app)
            await app.run(on_ready)

        uvloop.run(run())
    except (ConfigError, EngineDeadError) as error:
        _fail(str(error))
    logger.info("stopped")
    _exit()


@click.command("check-config")
@_config_options
@click.option("--json", "as_json", is_flag=True, help="Print the whole configuration as JSON.")
def check_config(config: Path | None, overrides: tuple[str, ...], insecure: bool, as_json: bool) -> None:
    """Check whether a configuration can be used, without loading a model. Exit status 0 if so, 2 if not.

    `serve` makes the same checks in the same order at its start, and logs the same warnings. The output says what
    callers without a credential may use, and names what only `serve` checks.

    \b
    Example:
        completion-server check-config --config deploy/local/server.toml
    """
    loaded = _load(config, overrides, insecure=insecure)
    with _printed_warnings():
        try:
            args = check(loaded, os.environ)
            loaded = with_revisions(loaded)
            budget = prompt_budget(loaded)
            load_prompts(loaded)
            load_edits(loaded)
        except ConfigError as error:
            _fail(str(error))
        warn_of_exposure(loaded, loaded.server.listen)
    if as_json:
        effective = {**asdict(loaded), "prompt_budget_tokens": budget, "engine_args": args}
        click.echo(json.dumps(effective | {"open": left_open(loaded), "not_checked": not_checked(loaded)}, indent=2))
    else:
        click.echo(f"ok: {loaded.engine.model}, prompts of up to {budget} tokens, listening on {loaded.server.listen}")
        click.echo(f"open to callers without a credential: {'; '.join(left_open(loaded)) or 'nothing'}")
        click.echo(f"not checked: {'; '.join(not_checked(loaded))}")


class _Warnings(logging.Handler):
    """Prints the warnings that `serve` logs."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one."""
        click.echo(f"completion-server: warning: {record.getMessage()}", err=True)


@contextlib.contextmanager
def _printed_warnings() -> Iterator[None]:
    log, handler = logging.getLogger("completion_server"), _Warnings(logging.WARNING)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


def _announce(engine: EngineSettings, last_s: float | None) -> None:
    """Log what is loading and how long that took last time: the start is silent for most of a minute otherwise."""
    draft = f" with the draft model {short(engine.draft_model)}" if engine.draft_model else ""
    may_compile = engine.kind == "vllm" and not engine.enforce_eager
    first = "the first start with these settings" + (", which may compile the model" if may_compile else "")
    last = first if last_s is None else f"the last start took {last_s:.0f} s"
    model = f" on {short(engine.model)}" if engine.model else ""
    logger.info("starting the %s engine%s%s; %s", engine.kind, model, draft, last)


def _start_times_path(environ: Mapping[str, str]) -> Path | None:
    """Return the file for durations of starts, in the user's cache folder; None if the user has none."""
    folder = cache_folder(environ)
    return folder / "start-times.json" if folder else None


def _install_signal_handlers(app: "App") -> None:
    """Drain on SIGTERM and Ctrl-C. Before the server has served, or on a second signal, end at once with the engine."""

    def end() -> None:
        if app.is_draining or not app.has_served:
            _end_at_once(1 if app.is_draining else 0)
        app.drain()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)


def _give_up_stop(unfinished: str) -> None:
    """End a process whose stop takes too long, with its engine."""
    # The log and the terminal may block for ever: a pipe that nobody reads, a lock that is never freed.
    last = threading.Timer(_LAST_WORDS_S, _end_at_once, [1])
    last.daemon = True
    last.start()
    message = f"the stop took too long: {unfinished}"
    logger.error("%s", message)
    click.echo(f"completion-server: {message}", err=True)
    _end_at_once(1)


def _exit() -> NoReturn:
    """End this process without the interpreter's teardown of every module, which takes a second after vLLM's import."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # nobody may read it any more
            stream.flush()
    os._exit(0)


def _end_at_once(status: int) -> None:
    kill_children()
    os._exit(status)


def _load(path: Path | None, overrides: tuple[str, ...], *, insecure: bool) -> Config:
    try:
        return load_config(path, (*overrides, *(("server.insecure=true",) if insecure else ())), os.environ)
    except ConfigError as error:
        _fail(str(error))
        raise AssertionError from error


def _fail(message: str) -> None:
    click.echo("\n".join(f"completion-server: {line}" for line in message.splitlines()), err=True)
    sys.exit(2)


def ready_json(ready: "Ready") -> dict[str, Any]:
    """Return the line for programs."""
    return {
        "event": "ready",
        "address": ready.address,
        "admin_address": ready.admin_address,
        "metrics_address": ready.metrics_address,
        "http_address": ready.http_address,
        "model": ready.engine.model,
        "model_revision": ready.engine.revision,
        "draft_model": ready.engine.draft_model,
        "draft_model_revision": ready.engine.draft_revision,
        "num_speculative_tokens": ready.engine.num_speculative_tokens,
        "speculation": ready.speculation,
        "prompt_template": ready.prompt_template,
        "slots": ready.load.num_slots,
        "max_slots": ready.load.max_slots,
        "slots_reason": ready.load.slots_reason,
        "speed": ready.speed and asdict(ready.speed),
    }


def ready_line(ready: "Ready", config: Config) -> str:
    """Return the line for people."""
    engine, load = ready.engine, ready.load
    model, draft_model = (
        short(name) + (f"@{revision}" if revision else "")
        for name, revision in ((engine.model, engine.revision), (engine.draft_model, engine.draft_revision))
    )
    draft = f" draft={draft_model}, {ready.speculation}" if draft_model else ""
    slots = f" slots={load.num_slots}" + (f" of {load.max_slots} ({load.slots_reason})" if load.slots_reason else "")
    command = f"printf 'if __name__ == ' | {_program()} complete{client_options(ready.address, config)} -"
    page = f" playground={page_url(ready.http_address, config)}" if ready.http_address else ""
    speed = f" ({ready.speed})" if ready.speed else ""
    return f"ready: {ready.address}{page} model={model}{draft}{slots}{speed}; try: {command}"


def page_url(address: str, config: Config) -> str:
    """Return the URL of the page on the HTTP listener at `address`."""
    certificate = "" if is_loopback(address) else config.server.tls.certificate
    if certificate:
        return f"https://{_named(address, certificate)}/"
    host, port = split_address(address)
    return f"http://localhost:{port}/" if host in _ANY_HOST else f"http://{address}/"


def client_options(address: str, config: Config) -> str:
    """Return the options with which a client reaches a listener and is accepted."""
    tls = config.server.tls
    reached = _named(address, tls.certificate) if tls.certificate else _from_here(address)
    options = [] if reached == DEFAULT_SERVER else ["--server", reached]
    if tls.certificate:
        options += ["--tls-ca", short(tls.certificate)]  # a certificate is an authority for itself
    if tls.client_ca:
        options += ["--tls-cert", "CLIENT_CERTIFICATE", "--tls-key", "ITS_KEY"]
    if config.auth.keys_file or config.auth.issuer:
        options += ["--token-file", "TOKEN_FILE"]
    elif config.admission.require_user and not config.auth.is_on:
        options += ["--user", "me"]
    return "".join(f" {shlex.quote(option)}" for option in options)


def _from_here(address: str) -> str:
    """Return the address of a listener on all addresses as this machine reaches it."""
    if is_unix_socket(address):
        return address
    host, port = split_address(address)
    return f"127.0.0.1:{port}" if host in _ANY_HOST else address


def _named(address: str, certificate: str) -> str:
    """Return an address with a host that the certificate is for, as clients check that."""
    if is_unix_socket(address):
        return address
    host, port = split_address(address)
    names = hosts_of(Path(certificate).read_bytes())
    is_here = is_loopback(address) or host in _ANY_HOST
    candidates = [host, *(_LOCAL_HOSTS if is_here else ()), *(name for name in names if "*" not in name)]
    found = next((name for name in candidates if name in names), host)
    return f"[{found}]:{port}" if ":" in found else f"{found}:{port}"


def _program() -> str:
    """Return the command with which the server was started."""
    if Path(sys.argv[0]).name == "__main__.py":
        return f"{shlex.quote(short(sys.executable))} -m completion_server"
    return shlex.quote(short(sys.argv[0]))


def short(name: str) -> str:
    """Return a path relative to the working directory; other names unchanged."""
    return os.path.relpath(name) if Path(name).is_relative_to(Path.cwd()) else name
