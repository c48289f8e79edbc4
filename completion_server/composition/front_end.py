"""A front end: a process that takes requests for the engine of its parent. Part of the composition root."""

import asyncio
import logging
import os
import pickle
import signal
import socket
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import NoReturn, TypeVar

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


def run(interface: int, version: str, plan: bytes, parent: socket.socket) -> None:
    """Serve until the parent or SIGTERM ends it. The whole life of a process.

    `plan` is a pickled `Plan`, which only code of the same interface can read. `version` is that of the code that the
    parent may start, "" for any with its interface.
    """
    for number in (signal.SIGINT, signal.SIGHUP):  # a terminal sends them to the whole group; the parent decides
        signal.signal(number, signal.SIG_IGN)
    uvloop.run(_refuse(parent, fault) if (fault := _misfit(interface, version)) else _serve(pickle.loads(plan), parent))
    os._exit(0)  # without the teardown of every module, which takes a second


def _misfit(interface: int, version: str) -> str:
    """Return why this code does not fit the parent, "" if it does."""
    if interface != INTERFACE:
        return f"the installed version {__version__} needs a restart of the server, engine included"
    if version not in {"", __version__}:
        return f"version {__version__} is installed, not {version}; see reload --code"
    return ""


async def _refuse(parent: socket.socket, reason: str) -> None:
    link: Link[ToFrontEnd, FromFrontEnd] = Link(lambda _message: None, lambda: None)
    await link.open(parent)
    link.send(Refused(reason))
    await link.aclose()


async def _serve(plan: Plan, parent: socket.socket) -> None:
    logs.configure(plan.config.log, f"front end {plan.group.place}")
    safe_logging.install()
    if not plan.config.server.core_dumps:
        core_dumps.switch_off()
    asyncio.get_running_loop().set_exception_handler(safe_logging.log_loop_error)
    engine = _ParentsEngine(plan.group.place)
    shutdown = Shutdown(plan.config.server.stop_timeout_s, lambda _unfinished: os._exit(1))
    try:
        app = App(_own(plan), lambda: _Attached(engine, plan.config), shutdown=shutdown, group=plan.group)
    except ConfigError as error:
        await _refuse(parent, str(error))
        return
    link: Link[ToFrontEnd, FromFrontEnd] = Link(
        lambda message: _receive(app, engine, link, message),
        lambda: _end_without(plan.group.place),
    )
    await link.open(parent)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, app.drain)
    reporting = asyncio.create_task(_report(app, link), name="reports to the parent")

    def on_ready(ready: Ready) -> None:
        freeze_startup_objects()
        link.send(Serving(ready.address, ready.http_address, ready.prompt_template, __version__))

    try:
        await app.run(on_ready)
    except (ConfigError, EngineDeadError) as error:
        link.send(Refused(str(error)))
    except Exception:
        logger.exception("the front end failed")
        raise
    finally:
        reporting.cancel()
        if (report := app.report()) is not None:
            link.send(Report(*report))
        link.send(Metrics(app.render_metrics()))
        await link.aclose()


def _end_without(place: int) -> NoReturn:
    """End at once: without its parent there is no engine."""
    logger.error("front end %d ends: its parent is gone", place)
    os._exit(1)


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
    number, place = server.processes, plan.group.place
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
            max_failed_starts=0,
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
        """Attach to the engine, when it is ready; to the next one if it dies meanwhile."""
        while True:
            await self._came.wait()
            up = self._up
            assert up is not None
            try:
                attached = await asyncio.to_thread(make_attached_engine, config, up.share, self.place)
                self._attached = attached
                await attached.start()
            except EngineDeadError:
                if self._up is up:
                    raise
                continue
            if self._up is up:
                return attached
            attached.fail("the engine died")


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
