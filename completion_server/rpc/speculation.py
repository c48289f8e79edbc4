"""Translates the speculation calls of operators between the wire and `speculation`."""

from completion.v1 import admin_pb2 as pb
from completion_server.core.errors import InvalidRequestError, NotPossibleError
from completion_server.speculation.figures import SpeculationFigures
from completion_server.speculation.live import (
    ActiveSpeculation,
    LiveSpeculation,
    SpeculationLockedError,
    SpeculationMode,
)
from completion_server.speculation.schedule import ScheduleError, SpeculationSchedule

MODES = {
    SpeculationMode.FIXED: pb.SPECULATION_MODE_FIXED,
    SpeculationMode.SCHEDULE: pb.SPECULATION_MODE_SCHEDULE,
    SpeculationMode.AUTO: pb.SPECULATION_MODE_AUTO,
}

_MAX_BY_CHARACTERS = 256


def set_speculation(speculation: LiveSpeculation, request: pb.SetSpeculationRequest) -> None:
    """Change the number of speculative tokens as an operator requests.

    Raises:
        InvalidRequestError: a field is invalid; the error names it, with the row of a schedule. Nothing changes.
        NotPossibleError: this engine can't change the number of speculative tokens.

    """
    by = _by(request)
    try:
        match request.mode:
            case pb.SPECULATION_MODE_FIXED:
                _set_fixed(speculation, request, by)
            case pb.SPECULATION_MODE_SCHEDULE:
                speculation.set_schedule(_rows(request), by)
            case pb.SPECULATION_MODE_AUTO:
                speculation.set_auto(by, _rows(request))
            case _:
                raise InvalidRequestError("mode", f"must be FIXED, SCHEDULE or AUTO, got {request.mode}")
    except ScheduleError as error:
        is_fixed = request.mode == pb.SPECULATION_MODE_FIXED
        field = "schedule" if error.row is None else f"schedule[{error.row}]"
        raise InvalidRequestError("num_speculative_tokens" if is_fixed else field, error.fault) from error
    except SpeculationLockedError as error:
        msg = f"the number of speculative tokens can't be changed on this server: {error}"
        raise NotPossibleError(msg) from error


def speculation_to_wire(active: ActiveSpeculation, figures: SpeculationFigures) -> pb.GetSpeculationResponse:
    """Return the response to GetSpeculation."""
    return pb.GetSpeculationResponse(
        schedule=rows_to_wire(active.schedule),
        max_num_speculative_tokens=active.max_num_speculative_tokens,
        since_unix_ms=active.since_unix_ms,
        mode=MODES[active.mode],
        by=active.set_by,
        table=rows_to_wire(active.operator_schedule),
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


def rows_to_wire(schedule: SpeculationSchedule) -> list[pb.SpeculationRow]:
    """Return the rows of a schedule as messages."""
    return [
        pb.SpeculationRow(
            first_batch_size=row.first, last_batch_size=row.last, num_speculative_tokens=row.num_speculative_tokens
        )
        for row in schedule.rows
    ]


def _set_fixed(speculation: LiveSpeculation, request: pb.SetSpeculationRequest, by: str) -> None:
    if not request.HasField("num_speculative_tokens"):
        raise InvalidRequestError("num_speculative_tokens", "must be set for mode FIXED")
    if request.schedule:
        raise InvalidRequestError("schedule", "must be empty for mode FIXED")
    speculation.set_fixed(request.num_speculative_tokens, by)


def _rows(request: pb.SetSpeculationRequest) -> list[tuple[int, int, int]]:
    if request.HasField("num_speculative_tokens"):
        raise InvalidRequestError("num_speculative_tokens", "is for mode FIXED alone")
    return [(row.first_batch_size, row.last_batch_size, row.num_speculative_tokens) for row in request.schedule]


def _by(request: pb.SetSpeculationRequest) -> str:
    if len(request.by) > _MAX_BY_CHARACTERS or not request.by.isprintable():
        limit = f"must be up to {_MAX_BY_CHARACTERS} printable characters, got {len(request.by)}"
        raise InvalidRequestError("by", limit)
    return request.by
