"""A front end: a process that takes requests for the engine of its parent. Part of the composition root."""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import TypeVar

import uvloop

from completion_server import __version__
from completion_server.composition.app import App, Ready
from completion_server.composition.engine_factory import make_attached_engine
from completion_server.composition.links import (
    INTERFACE,
    AskMetrics,
    Drain,
    EngineDown,
    EngineUp,
    FromFrontEnd,
    Link,
    Metrics,
    Plan,
    Refused,
    Report,
    Serving,
    SetLogLevel,
    ToFrontEnd,
)
from completion_server.composition.records import own_file
from completion_server.composition.shutdown import Shutdown
from completion_server.config import Config
from completion_server.core import core_dumps, safe_logging
from completion_server.core.collection import freeze_startup_objects
from completion_server.core.errors import ConfigError
from completion_server.engine.interface import (
    AttachedEngine,
    Engine,
    EngineDeadError,
    EngineInfo,
    EngineStats,
    GenerationRequest,
    Output,
    SpeculationControl,
    SpeculationLookup,
)
from completion_server.engine.settings import SpeculationSettings
from completion_server.telemetry import logs

logger = logging.getLogger(__name__)

REPORT_EVERY_S = 0.5
_NEVER_S, _DAY_S = 3600.0, 86_400.0
Limit = TypeVar("Limit", int, int | None)


def run(plan: Plan, parent: socket.socket) -> None:
    """Serve until the parent or SIGTERM ends it. The whole life of a process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    logs.configure(plan.config.log)
    safe_logging.install()
    if not plan.config.server.core_dumps:
        core_dumps.switch_off()
    uvloop.run(_serve(plan, parent))
    os._exit(0)  # without the teardown of every module, which takes a second


async def _serve(plan: Plan, parent: socket.socket) -> None:
    asyncio.get_running_loop().set_exception_handler(safe_logging.log_loop_error)
    engine, failure = _ParentsEngine(plan.front_end.group.place), ""
    shutdown = Shutdown(plan.config.server.stop_timeout_s, lambda _unfinished: os._exit(1))
    try:
        _check_version(plan)
        app = App(_own(plan), lambda: _Attached(engine, plan.config), shutdown=shutdown, front_end=plan.front_end)
    except ConfigError as error:
        failure = str(error)
    link: Link[ToFrontEnd, FromFrontEnd] = Link(
        lambda message: _receive(app, engine, link, message),
        lambda: os._exit(1),  # without its parent there is no engine
    )
    await link.open(parent)
    if failure:
        link.send(Refused(failure))
        await link.aclose()
        return
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, app.drain)
    reporting = asyncio.create_task(_report(app, link), name="reports to the parent")

    def on_ready(ready: Ready) -> None:
        freeze_startup_objects()
        link.send(Serving(ready.address, ready.http_address, ready.prompt_template))

    try:
        await app.run(on_ready)
    except (ConfigError, EngineDeadError) as error:
        link.send(Refused(str(error)))
    except Exception:
        logger.exception("front end %d failed", plan.front_end.group.place)
        raise
    finally:
        reporting.cancel()
        link.send(Metrics(app.render_metrics()))
        await link.aclose()


def _check_version(plan: Plan) -> None:
    if plan.interface != INTERFACE:
        raise ConfigError(f"the installed version {__version__} needs a restart of the server, engine included")
    if plan.version not in {"", __version__}:
        raise ConfigError(f"version {__version__} is installed, not {plan.version}; see reload --code")


def _receive(app: App, engine: "_ParentsEngine", link: Link[ToFrontEnd, FromFrontEnd], message: ToFrontEnd) -> None:
    """Do what the parent says."""
    match message:
        case EngineUp():
            engine.is_up(message)
        case EngineDown():
            engine.is_down()
        case Drain(grace_s):
            app.drain(grace_s)
        case SetLogLevel(level):
            logs.set_level(level)
        case AskMetrics():
            link.send(Metrics(app.render_metrics()))


async def _report(app: App, link: Link[ToFrontEnd, FromFrontEnd]) -> None:
    while True:
        await asyncio.sleep(REPORT_EVERY_S)
        if (report := app.report()) is not None:
            link.send(Report(*report))


def _own(plan: Plan) -> Config:
    """Return the configuration of one front end: what there is one of, it leaves to its parent.

    That finds out whether the engine hangs, warms it up and chooses K.
    """
    config, records = plan.config, plan.config.records
    server, engine, admission = config.server, config.engine, config.admission
    number, place = server.processes, plan.front_end.group.place
    assert isinstance(number, int)
    return replace(
        config,
        server=replace(
            server,
            admin_listen="",
            metrics_listen="",
            http_admin=False,
            max_connections=_part(server.max_connections, number),
            http_max_connections=_part(server.http_max_connections, number),
        ),
        engine=replace(
            engine,
            start_timeout_s=_DAY_S,
            warm_up=False,
            heartbeat_s=0.0,
            hang_timeout_s=_NEVER_S,
            step_timeout_s=_NEVER_S,
        ),
        speculation=SpeculationSettings(mode="fixed"),
        admission=replace(admission, max_sessions=_part(admission.max_sessions, number)),
        records=replace(
            records,
            usage_file=own_file(records.usage_file, str(place)),
            audit_file=own_file(records.audit_file, str(place)),
        ),
    )


def _part(limit: Limit, number: int) -> Limit:
    """Return one front end's part of a limit of the server, which may be None."""
    return limit if limit is None else -(-limit // number)


class _ParentsEngine:
    """What the parent said last of its engine."""

    def __init__(self, place: int) -> None:
        self.place = place
        self._up: EngineUp | None = None
        self._came = asyncio.Event()
        self._attached: AttachedEngine | None = None

    def is_up(self, message: EngineUp) -> None:
        self._up = message
        self._came.set()

    def is_down(self) -> None:
        self._up = None
        self._came.clear()
        if self._attached is not None:
            self._attached.fail("the engine died")

    async def attach(self, config: Config) -> AttachedEngine:
        """Attach to the engine, when it is ready."""
        await self._came.wait()
        assert self._up is not None
        self._attached = await asyncio.to_thread(make_attached_engine, config, self._up.share, self.place)
        await self._attached.start()
        return self._attached


class _Attached(Engine):
    """The parent's engine, from when the parent says that it is ready until it says that it died."""

    def __init__(self, parent: _ParentsEngine, config: Config) -> None:
        self._parent = parent
        self._config = config
        self._engine: AttachedEngine | None = None

    @property
    def info(self) -> EngineInfo:
        if self._engine is None:
            raise EngineDeadError("the engine has not started")
        return self._engine.info

    @property
    def is_alive(self) -> bool:
        return self._engine is not None and self._engine.is_alive

    async def start(self) -> None:
        self._engine = await self._parent.attach(self._config)

    def generate(self, request: GenerationRequest) -> AsyncGenerator[Output]:
        if self._engine is None:
            raise EngineDeadError("the engine is not running")
        return self._engine.generate(request)

    def stats(self) -> EngineStats:
        return EngineStats() if self._engine is None else self._engine.stats()

    @property
    def lookup(self) -> SpeculationLookup:
        return () if self._engine is None else self._engine.lookup

    @property
    def speculation(self) -> SpeculationControl | None:
        return None

    async def stop(self) -> None:
        if self._engine is not None:
            await self._engine.stop()
