"""The parent of several front ends: owns the engine, and all that a server has one of. Part of the composition root.

It loads, warms, supervises and replaces the engine, finds out which K pays, and answers operators and Prometheus.
"""

import asyncio
import contextlib
import dataclasses
import logging
import socket
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry

from completion_server import __version__
from completion_server.admission.callers import Callers
from completion_server.admission.entrance import Entrance
from completion_server.admission.gate import Readiness
from completion_server.admission.refusals import Refusals, refusal_budgets
from completion_server.composition.app import Ready
from completion_server.composition.authentication import make_authenticator
from completion_server.composition.checks import num_processes, warn_of_exposure
from completion_server.composition.front_ends import FrontEnds
from completion_server.composition.links import EngineUp, Serving, SetLogLevel
from completion_server.composition.models import check_fits, load_prompts
from completion_server.composition.monitoring import Monitoring, WatchedParts, snapshot
from completion_server.composition.records import Records, own_file
from completion_server.composition.reload import Reloads
from completion_server.composition.samples import begin_speculation
from completion_server.composition.shutdown import Shutdown, told_plainly
from completion_server.config import Config
from completion_server.core.addresses import split_address
from completion_server.core.certificates import CertificateFiles, watch
from completion_server.core.clock import Clock, MonotonicClock
from completion_server.core.errors import ConfigError
from completion_server.engine.interface import Engine
from completion_server.engine.start_times import StartTimes
from completion_server.engine.supervisor import EngineState, SupervisedEngine
from completion_server.rpc.admin import AdminServicer, Controls, FrontEndSeen
from completion_server.rpc.listening import load_certificates
from completion_server.rpc.server import HealthReporter, build_admin_server
from completion_server.serving.service import LoadSnapshot
from completion_server.speculation.live import LiveSpeculation
from completion_server.state.local.group import LocalParent
from completion_server.state.secret import load_secret
from completion_server.state.status import CacheStatus
from completion_server.telemetry.logs import set_level
from completion_server.telemetry.merged import MergedRegistry

logger = logging.getLogger(__name__)

_CLOSE_S = 1.0
_PAGES_S = 5.0


class Parent:
    """A server with several front ends."""

    def __init__(
        self,
        config: Config,
        make_engine: Callable[[], Engine],
        read_config: Callable[[], Config],
        *,
        clock: Clock | None = None,
        registry: CollectorRegistry = REGISTRY,
        start_times: StartTimes | None = None,
        shutdown: Shutdown | None = None,
        folder: Path | None = None,
    ) -> None:
        """Build the parts. `read_config` reads the configuration anew, for a reload.

        What the processes share is in `folder`, else where temporary files are.

        Raises:
            ConfigError: several processes can't share an address, or a file that callers are verified against is bad.

        """
        as_read = config
        number = num_processes(config)
        config = replace(config, server=replace(config.server, processes=number))
        self._clock = clock or MonotonicClock()
        self._started_at = self._clock.now()
        self._health = HealthReporter()
        self._shutdown = shutdown or Shutdown()
        self._engine = SupervisedEngine(
            make_engine,
            config.engine,
            self._clock,
            self._engine_changed,
            start_times=start_times,
        )
        self._speculation = LiveSpeculation(self._engine, config.speculation, self._clock, time.time)
        self._group = LocalParent(number, self._clock, folder)
        self._pages: MergedRegistry | None = None
        self._monitoring = Monitoring(config, registry, self._merged)
        self._front_ends = FrontEnds(
            config, number, self._clock, self._group.group, self._place_cleared, self._page_ended,
            lambda: self._later(self._set_health()),
        )  # fmt: skip
        own_records = replace(config.records, usage_file="", audit_file=own_file(config.records.audit_file, "parent"))
        self._records = Records(replace(config, records=own_records), registry)
        self._emit = self._records.heard_by(self._monitoring.metrics.handle)
        self._authenticator = make_authenticator(config, self._emit)
        self._entrance = Entrance(config.admission, config.limits, self._authenticator, self._emit)
        self._drain_requested = asyncio.Event()
        self._grace_s = config.server.grace_s
        self._has_served = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._reloads = Reloads(as_read, read_config, self._front_ends, self._why_no_reload)

    @property
    def _config(self) -> Config:
        return self._front_ends.config

    async def run(self, on_ready: Callable[[Ready], None]) -> None:
        """Start, serve until told to drain, drain and stop.

        Raises:
            ConfigError: an address or a certificate can't be used, or the prompt does not fit the model.
            EngineDeadError: the engine did not start, or not again.

        """
        config = self._config
        self._loop = asyncio.get_running_loop()
        async with contextlib.AsyncExitStack() as stack:
            certificates = load_certificates(config.server)
            self._records.start(load_secret(config.redis), stack)
            read = snapshot(self._engine, self._speculation, None, lambda: None)
            watched = WatchedParts(self._speculation, read, self._readiness)
            metrics_address = self._monitoring.start(watched, stack)
            self._monitoring.add_certificates({name: each for name, each in certificates.items() if name == "admin"})
            await self._health.set(is_serving=False)
            self._front_ends.config = config = _with_ports(config, stack)
            stack.callback(self._group.close)
            stack.callback(self._front_ends.kill)
            await self._front_ends.start()
            stack.push_async_callback(self._stop_engine)
            prompts = await asyncio.to_thread(load_prompts, config)
            admin_address = await self._start_admin(prompts.template.name, certificates, stack)
            await self._engine.start()
            check_fits(self._engine.info, config)
            choice = await begin_speculation(config, self._engine, self._speculation, prompts, self._clock)
            ready = partial(self._ready, admin_address, metrics_address, choice)
            with told_plainly():
                await self._serve(tuple(certificates.values()), ready, on_ready)

    async def _serve(
        self,
        certificates: Sequence[CertificateFiles],
        ready: Callable[[Serving], Ready],
        on_ready: Callable[[Ready], None],
    ) -> None:
        async with asyncio.TaskGroup() as group:
            with self._shutdown.begins_on_failure():
                tasks = [
                    group.create_task(self._engine.run(), name="engine supervisor"),
                    group.create_task(self._group.run(), name="limits of the front ends"),
                    group.create_task(self._front_ends.run(), name="front ends"),
                    group.create_task(watch(certificates), name="certificates"),
                ]
                if self._authenticator is not None:
                    tasks.append(group.create_task(self._authenticator.run(), name="authentication"))
                on_ready(ready(await self._front_ends.wait_serving()))
                self._has_served = True
                await self._set_health()
                await self._drain_requested.wait()
                await self._health.set(is_serving=False)
                self._shutdown.drain(self._load().num_live, self._grace_s)
                await self._front_ends.stop(self._grace_s)
                self._shutdown.begin("ending the server's tasks")
                for task in tasks:
                    task.cancel()

    def _ready(self, admin_address: str, metrics_address: str, choice: str, serving: Serving) -> Ready:
        warn_of_exposure(self._config, serving.address)
        return Ready(
            serving.address, admin_address, metrics_address, serving.http_address,
            self._engine.info, serving.prompt_template, choice, self._load(),
        )  # fmt: skip

    @property
    def has_served(self) -> bool:
        """Whether it was ever ready to accept requests."""
        return self._has_served

    @property
    def is_draining(self) -> bool:
        """Whether new requests are turned away."""
        return self._drain_requested.is_set()

    def drain(self, grace_s: float | None = None) -> None:
        """Stop taking requests, let accepted ones finish, then end."""
        if grace_s is not None:
            self._grace_s = grace_s
        self._drain_requested.set()

    async def reload(self, with_code: bool) -> int:
        """Read the configuration anew, and replace the front ends one after another; return how many.

        The engine goes on, and so does the reload if the caller leaves. `with_code` lets them start from another
        installed version.

        Raises:
            NotPossibleError: the configuration can't be used, or needs a restart; the message names the keys.

        """
        return await asyncio.shield(self.begin_reload(with_code))

    def begin_reload(self, with_code: bool = False) -> "asyncio.Task[int]":
        """Begin to reload. The log has its end."""
        return self._reloads.begin(with_code)

    def _why_no_reload(self) -> str:
        if self._has_served and not self.is_draining:
            return ""
        return f"the server is {'stopping' if self.is_draining else 'starting'}"

    async def _stop_engine(self) -> None:
        self._shutdown.begin("stopping the engine")
        await self._engine.stop()

    async def _start_admin(
        self, template: str, certificates: Mapping[str, Any], stack: contextlib.AsyncExitStack
    ) -> str:
        config = self._config
        if not config.server.admin_listen:
            return ""
        controls = Controls(
            version=__version__,
            region=config.server.region,
            prompt_template=template,
            uptime_s=lambda: self._clock.now() - self._started_at,
            ended_requests=self._ended,
            replication=lambda: next((each.replication for each in self._front_ends.reports), None),
            cache=self._cache_status,
            drain=self.drain,
            set_log_level=self._set_log_level,
            render_metrics=self._monitoring.render,
            front_ends=self._front_ends_seen,
            reload=self.reload,
        )
        listener = build_admin_server(
            config.server,
            AdminServicer(self._load, self._emit, self._engine, self._speculation, controls),
            self._health,
            Callers(self._entrance, Refusals(*refusal_budgets(config.admission), self._clock.now)),
            certificates.get("admin"),
        )
        await listener.server.start()
        stack.push_async_callback(listener.server.stop, _CLOSE_S)
        return listener.address

    # What operators and Prometheus see

    def _readiness(self) -> Readiness:
        if self.is_draining:
            return Readiness.DRAINING
        found = [each.load.readiness for each in self._front_ends.reports]
        return Readiness.READY if Readiness.READY in found else next(iter(found), Readiness.STARTING)

    def _load(self) -> LoadSnapshot:
        loads = [each.load for each in self._front_ends.reports]
        most = max(loads, key=lambda load: load.num_slots, default=None)
        return LoadSnapshot(
            self._readiness(),
            num_sessions=sum(each.num_sessions for each in loads),
            num_live=sum(each.num_live for each in loads),
            num_queued=sum(each.num_queued for each in loads),
            num_occupied=sum(each.num_occupied for each in loads),
            num_slots=most.num_slots if most else 0,
            max_slots=self._config.scheduling.max_slots,
            slots_reason=most.slots_reason if most else "",
        )

    def _ended(self) -> dict[str, int]:
        living = (Counter(each.ended) for each in self._front_ends.reports)
        return dict(sum(living, self._front_ends.ended_requests))

    def _cache_status(self) -> CacheStatus | None:
        found = [each.cache for each in self._front_ends.reports if each.cache is not None]
        return CacheStatus(*map(sum, zip(*map(dataclasses.astuple, found), strict=True))) if found else None

    def _front_ends_seen(self) -> list[FrontEndSeen]:
        return [
            FrontEndSeen(
                each.process.pid or 0,
                each.is_serving,
                each.report.load if each.report else None,
                each.serving.result().version if each.is_serving else "",
            )
            for each in self._front_ends.all
        ]

    def _set_log_level(self, level: str) -> str:
        previous = set_level(level)
        self._front_ends.tell(SetLogLevel(level))
        return previous

    def _merged(self, own: CollectorRegistry) -> CollectorRegistry:
        self._pages = MergedRegistry(own, self._collect_pages)
        return self._pages

    def _collect_pages(self) -> dict[str, str]:
        """Return the metrics of the front ends. Called from other threads than the event loop's."""
        assert self._loop is not None
        asked = asyncio.run_coroutine_threadsafe(self._front_ends.collect_pages(), self._loop)
        return asked.result(_PAGES_S)

    def _page_ended(self, page: str) -> None:
        assert self._pages is not None
        self._pages.ended(page)

    # What happens

    def _engine_changed(self, state: EngineState) -> None:
        is_ready = state is EngineState.READY
        if is_ready:
            share = self._engine.share()
            assert share is not None
            self._front_ends.engine_is_up(EngineUp(share))
        elif state is EngineState.FAILED:
            self._front_ends.engine_is_down()
        self._later(self._set_health())

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _set_health(self) -> None:
        is_ready = self._engine.state is EngineState.READY and self._front_ends.is_any_serving
        await self._health.set(is_serving=is_ready and self._has_served and not self.is_draining)

    def _place_cleared(self, place: int) -> None:
        """Free what a front end that has ended held in the engine and beside the others."""
        self._group.clear(place)
        if self._engine.is_alive and self._loop is not None:
            self._later(self._engine.current.abort_place(place))


def _with_ports(config: Config, stack: contextlib.ExitStack | contextlib.AsyncExitStack) -> Config:
    """Return a configuration with the ports that the front ends share, held until `stack` is closed.

    A bound socket that does not listen gets no connection.

    Raises:
        ConfigError: an address can't be used.

    """
    addresses = {"listen": config.server.listen, "http_listen": config.server.http_listen}
    for key, address in addresses.items():
        if not address:
            continue
        host, port = split_address(address)
        held = stack.enter_context(socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET))
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            held.bind((host, port))
        except OSError as error:
            raise ConfigError(f"server.{key}: can't listen on {address}: {error.strerror or error}") from error
        addresses[key] = f"{address.rpartition(':')[0]}:{held.getsockname()[1]}"
    listen, http_listen = addresses.values()
    return replace(config, server=replace(config.server, listen=listen, http_listen=http_listen))
