"""AdminService: lets operators inspect and control one server.

With authentication on, only callers with the scope admin may call it, also on loopback.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import grpc

from completion.v1 import admin_pb2 as pb
from completion.v1 import admin_pb2_grpc
from completion_server.api.callers import Callers
from completion_server.api.rpc.intake import identify, split_peer
from completion_server.api.rpc.status import abort
from completion_server.core.credential import Scope
from completion_server.core.errors import CompletionError, InvalidRequestError, NotPossibleError
from completion_server.core.events import AdminChanged
from completion_server.core.request import Caller
from completion_server.engine.speculation.live import LiveSpeculation, SpeculationLockedError, SpeculationMode
from completion_server.engine.speculation.schedule import ScheduleError, SpeculationSchedule
from completion_server.engine.supervisor import EngineState, SupervisedEngine
from completion_server.requests.gate import Readiness
from completion_server.requests.service import Service
from completion_server.state.store import CacheStatus, ReplicationStatus

ADMIN_SERVICE = pb.DESCRIPTOR.services_by_name["AdminService"].full_name
_ENGINE_STATES = {each: pb.EngineState.Value(f"ENGINE_STATE_{each.name}") for each in EngineState}
_MODES = {each: pb.SpeculationMode.Value(f"SPECULATION_MODE_{each.name}") for each in SpeculationMode}

_MAX_BY_CHARACTERS = 256


def _set_speculation(speculation: LiveSpeculation, request: pb.SetSpeculationRequest) -> None:
    """Change the number of speculative tokens as an operator requests.

    Raises:
        InvalidRequestError: a field is invalid; the error names it, with the row of a schedule. Nothing changes.
        NotPossibleError: this engine can't change the number of speculative tokens.

    """
    mode, by, fixed = request.mode, request.by, pb.SPECULATION_MODE_FIXED
    has_k = request.HasField("num_speculative_tokens")
    limit = f"must be up to {_MAX_BY_CHARACTERS} printable characters, got {len(by)}"
    for is_fault, field, fault in (
        (len(by) > _MAX_BY_CHARACTERS or not by.isprintable(), "by", limit),
        (mode not in _MODES.values(), "mode", f"must be FIXED, SCHEDULE or AUTO, got {mode}"),
        (mode == fixed and not has_k, "num_speculative_tokens", "must be set for mode FIXED"),
        (mode != fixed and has_k, "num_speculative_tokens", "is for mode FIXED alone"),
        (mode == fixed and bool(request.schedule), "schedule", "must be empty for mode FIXED"),
    ):
        if is_fault:
            raise InvalidRequestError(field, fault)
    rows = [(row.first_batch_size, row.last_batch_size, row.num_speculative_tokens) for row in request.schedule]
    try:
        if mode == fixed:
            speculation.set_fixed(request.num_speculative_tokens, by)
        elif mode == pb.SPECULATION_MODE_SCHEDULE:
            speculation.set_schedule(rows, by)
        else:
            speculation.set_auto(by, rows)
    except ScheduleError as error:
        field = "schedule" if error.row is None else f"schedule[{error.row}]"
        raise InvalidRequestError("num_speculative_tokens" if mode == fixed else field, error.fault) from error
    except SpeculationLockedError as error:
        msg = f"the number of speculative tokens can't be changed on this server: {error}"
        raise NotPossibleError(msg) from error


def _rows_to_wire(schedule: SpeculationSchedule) -> list[pb.SpeculationRow]:
    rows = ((each.first, each.last, each.num_speculative_tokens) for each in schedule.rows)
    return [pb.SpeculationRow(first_batch_size=a, last_batch_size=b, num_speculative_tokens=k) for a, b, k in rows]


@dataclass(frozen=True, slots=True)
class Controls:
    """The functions and facts of the server, besides the service, that operators can reach."""

    version: str
    region: str
    """Empty if none is configured."""
    prompt_template: str
    uptime_s: Callable[[], float]
    ended_requests: Callable[[], dict[str, int]]
    replication: Callable[[], ReplicationStatus | None]
    cache: Callable[[], CacheStatus | None]
    drain: Callable[[float | None], None]
    """Begins to drain; the argument is the grace time in seconds, None for the configured one."""
    set_log_level: Callable[[str], str]
    """Returns the previous level; raises ValueError for an unknown level."""
    render_metrics: Callable[[Sequence[str]], str]
    """Returns the metrics with these names, all without names, in Prometheus' text format. Runs in any thread."""


class AdminServicer(admin_pb2_grpc.AdminServiceServicer):
    """Implements AdminService."""

    def __init__(
        self, service: Service, engine: SupervisedEngine, speculation: LiveSpeculation, controls: Controls
    ) -> None:
        """Report on `service` and `engine`, and control them through `speculation` and `controls`."""
        self._service = service
        self._engine = engine
        self._speculation = speculation
        self._controls = controls

    async def GetStatus(self, _request: pb.GetStatusRequest, _context: Any) -> pb.GetStatusResponse:
        """Return the state of the server and of its engine."""
        engine, info, load = self._engine, self._engine.info, self._service.load()
        return pb.GetStatusResponse(
            version=self._controls.version,
            region=self._controls.region,
            uptime_s=self._controls.uptime_s(),
            engine_state=_ENGINE_STATES[engine.state],
            engine_restarts=engine.num_restarts,
            engine_failure=engine.failure,
            draining=load.readiness is Readiness.DRAINING,
            model=info.model,
            model_revision=info.revision,
            draft_model=info.draft_model,
            draft_model_revision=info.draft_revision,
            num_speculative_tokens=info.num_speculative_tokens,
            prompt_template=self._controls.prompt_template,
            live_sessions=load.num_sessions,
            queued_requests=load.num_queued,
            running_requests=load.num_occupied,
            slots=load.num_slots,
            max_slots=load.max_slots,
            slots_reason=load.slots_reason,
            ended_requests=self._controls.ended_requests(),
            replication=_replication_to_wire(self._controls.replication()),
            cache=_cache_to_wire(self._controls.cache()),
        )

    async def GetSpeculation(self, _request: pb.GetSpeculationRequest, _context: Any) -> pb.GetSpeculationResponse:
        """Return the active schedule of speculative tokens and its figures."""
        active, figures = self._speculation.active, self._speculation.figures()
        return pb.GetSpeculationResponse(
            schedule=_rows_to_wire(active.schedule),
            max_num_speculative_tokens=active.max_num_speculative_tokens,
            since_unix_ms=active.since_unix_ms,
            mode=_MODES[active.mode],
            by=active.set_by,
            table=_rows_to_wire(active.operator_schedule),
            fixed_because=active.locked_reason,
            figures=pb.SpeculationFigures(
                window_s=figures.seconds,
                generated_tokens=figures.num_tokens,
                drafted_tokens=figures.num_drafted,
                accepted_tokens=figures.num_accepted,
                wasted_tokens=figures.num_wasted,
                acceptance=figures.acceptance,
                acceptance_by_position=figures.acceptance_by_position,
                mean_accepted_length=figures.mean_accepted_length,
                tokens_per_s=figures.tokens_per_s,
            ),
        )

    async def SetSpeculation(self, request: pb.SetSpeculationRequest, context: Any) -> pb.SetSpeculationResponse:
        """Change the number of speculative tokens from the engine's next step on."""
        before = self._speculation.active
        try:
            _set_speculation(self._speculation, request)
        except CompletionError as error:
            await abort(context, error)
        now = self._speculation.active
        rows, mode = _rows_to_wire(now.schedule), _MODES[now.mode]
        self._changed(context, "speculation", str(before), str(now), request.by)
        return pb.SetSpeculationResponse(schedule=rows, since_unix_ms=now.since_unix_ms, mode=mode)

    async def SetLogLevel(self, request: pb.SetLogLevelRequest, context: Any) -> pb.SetLogLevelResponse:
        """Change the log level."""
        try:
            previous = self._controls.set_log_level(request.level)
        except ValueError as error:
            field, _, fault = str(error).partition(": ")
            await abort(context, InvalidRequestError(field, fault))
        self._changed(context, "log level", previous, request.level)
        return pb.SetLogLevelResponse(previous_level=previous)

    async def Drain(self, request: pb.DrainRequest, context: Any) -> pb.DrainResponse:
        """Stop accepting requests; the server ends when the accepted ones have ended."""
        self._changed(context, "drain", self._service.gate.readiness.value, Readiness.DRAINING.value)
        self._controls.drain(request.grace_ms / 1000 if request.HasField("grace_ms") else None)
        return pb.DrainResponse(live_requests=self._service.load().num_live)

    async def GetMetrics(self, request: pb.GetMetricsRequest, _context: Any) -> pb.GetMetricsResponse:
        """Return metrics. A page with vLLM's takes milliseconds, in which the event loop goes on."""
        text = await asyncio.to_thread(self._controls.render_metrics, tuple(request.names))
        return pb.GetMetricsResponse(text=text, uptime_s=self._controls.uptime_s())

    def _changed(self, context: Any, setting: str, old: str, new: str, by: str = "") -> None:
        """Report a change for the audit log. `by` is the name that the request claims, if none is verified."""
        caller = operator.get() or Caller(by, peer=split_peer(context.peer())[1])
        self._service.emit(AdminChanged(caller, setting, old, new))


def _replication_to_wire(status: ReplicationStatus | None) -> pb.ReplicationStatus | None:
    if status is None:
        return None
    return pb.ReplicationStatus(
        replica_id=status.replica_id,
        redis_available=status.is_redis_available,
        redis_failure=status.redis_failure,
        redis_outages=status.num_outages,
        listening=status.is_listening,
        messages_received=status.num_received,
    )


def _cache_to_wire(status: CacheStatus | None) -> pb.CacheStatus | None:
    if status is None:
        return None
    return pb.CacheStatus(
        entries=status.num_entries,
        bytes=status.num_bytes,
        local_hits=status.num_local_hits,
        shared_hits=status.num_shared_hits,
        misses=status.num_misses,
    )


operator: ContextVar[Caller | None] = ContextVar("operator", default=None)
"""The verified caller of the method that runs in this context; None if authentication is off."""


class AdminAccess(grpc.aio.ServerInterceptor):
    """Identifies the caller of each method of AdminService, all of which take one message and return one."""

    def __init__(self, callers: Callers) -> None:
        """Let `callers` with the scope in."""
        self._callers = callers

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]], details: grpc.HandlerCallDetails
    ) -> Any:
        """Return the handler of a call, behind the check if it is one of AdminService."""
        handler = await continuation(details)
        if handler is None or not details.method.startswith(f"/{ADMIN_SERVICE}/"):
            return handler

        async def serve(request: Any, context: Any) -> Any:
            try:
                operator.set(await identify(self._callers, context, Scope.ADMIN))
            except CompletionError as error:
                await abort(context, error)
            return await handler.unary_unary(request, context)

        return grpc.unary_unary_rpc_method_handler(
            serve,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )
