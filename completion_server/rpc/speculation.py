"""Draft lengths on the wire: what operators set, and what they are shown."""

from completion.v1 import admin_pb2 as pb
from completion_server.core.errors import InvalidRequestError, NotPossibleError
from completion_server.speculation.figures import Figures
from completion_server.speculation.live import InForce, LiveSpeculation, Mode
from completion_server.speculation.schedule import Schedule, ScheduleError, SpeculationFixedError

MODES = {
    Mode.FIXED: pb.SPECULATION_MODE_FIXED,
    Mode.SCHEDULE: pb.SPECULATION_MODE_SCHEDULE,
    Mode.AUTO: pb.SPECULATION_MODE_AUTO,
}

_MAX_BY_CHARACTERS = 256


def set_speculation(speculation: LiveSpeculation, request: pb.SetSpeculationRequest) -> None:
    """Do what an operator asks.

    Raises:
        InvalidRequestError: a field is bad; it names the row of a schedule. What was in force stays.
        NotPossibleError: this engine can't change its draft lengths.

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
    except SpeculationFixedError as error:
        msg = f"draft lengths can't be changed on this server: {error}"
        raise NotPossibleError(msg) from error


def speculation_to_wire(in_force: InForce, figures: Figures) -> pb.GetSpeculationResponse:
    """Return what operators are shown."""
    return pb.GetSpeculationResponse(
        schedule=rows_to_wire(in_force.schedule),
        max_num_speculative_tokens=in_force.ceiling,
        since_unix_ms=in_force.since_unix_ms,
        mode=MODES[in_force.mode],
        by=in_force.by,
        table=rows_to_wire(in_force.table),
        fixed_because=in_force.fixed_because,
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


def rows_to_wire(schedule: Schedule) -> list[pb.SpeculationRow]:
    """Return a schedule's rows."""
    return [
        pb.SpeculationRow(
            first_batch_size=row.first, last_batch_size=row.last, num_speculative_tokens=row.num_draft_tokens
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
