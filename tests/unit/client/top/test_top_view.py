"""Frames for terminals of all sizes."""

from datetime import UTC, datetime
from io import StringIO

import pytest
from rich.console import Console

from completion.v1 import admin_pb2
from completion_server.client.top.figures import IntervalChange
from completion_server.client.top.poll import ServerState
from completion_server.client.top.readings import parse
from completion_server.client.top.view import frame

AT = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
BUCKETS = (("0.01", 10), ("0.1", 18), ("0.2", 20), ("+Inf", 20))
STAGES = ("admission", "queue", "tokenise", "prefill", "decode_token", "stream")


def page(num_in_time: int = 19) -> str:
    lines = [f'completion_stage_seconds_bucket{{stage="{s}",le="{le}"}} {n}' for s in STAGES for le, n in BUCKETS]
    lines += [f'completion_ttft_seconds_bucket{{trigger="automatic",le="{le}"}} {n}' for le, n in BUCKETS]
    lines += [
        f'completion_slo_requests_total{{result="in_time"}} {num_in_time}',
        f'completion_slo_requests_total{{result="late"}} {20 - num_in_time}',
        'completion_requests_total{outcome="stop",shed_reason=""} 15',
        'completion_requests_total{outcome="shed",shed_reason="deadline_unreachable"} 5',
    ]
    return "\n".join(lines) + "\n"


def state(name: str = "a:1", num_in_time: int = 19, **fields: object) -> ServerState:
    status = admin_pb2.GetStatusResponse(
        engine_state=admin_pb2.ENGINE_STATE_READY, live_sessions=7, queued_requests=2, running_requests=3, slots=8
    )
    for field, value in fields.items():
        setattr(status, field, value)
    counted = parse(page(num_in_time), 2.0)
    return ServerState(name, "SERVING", status, IntervalChange(counted, counted))


def down(name: str = "b:2") -> ServerState:
    return ServerState(name, problem=f"No server answers at {name}.")


def shown(states: list[ServerState], width: int = 200, height: int = 60) -> str:
    console = Console(width=width, height=height, file=StringIO(), highlight=False)
    with console.capture() as capture:
        console.print(frame(states, AT, 2.0, (width, height)))
    return capture.get()


def row(page: str, name: str) -> str:
    return next(line for line in page.splitlines() if line.startswith(name))


def test_a_row_has_the_figures_of_its_server() -> None:
    line = row(shown([state(region="us-east")]), "a:1").split()
    for cell in ("us-east", "serving", "ready", "7", "10.0", "95.0%", "10", "3/8", "25%"):
        assert cell in line
    assert "all" not in shown([state()]).splitlines()[3:5]


def test_several_servers_have_a_row_of_all_together() -> None:
    text = shown([state("a:1", region="us-east"), state("c:3", region="eu-west", live_sessions=5), down()])
    line = row(text, "all")
    assert "2/3 serving" in line
    assert "2 regions" in line
    assert " 12 " in line
    assert "20.0" in line
    assert "down" in row(text, "b:2")
    assert "No server answers at b:2." in text


def test_the_breaker_is_a_column_where_servers_share_redis() -> None:
    assert "breaker" not in shown([state()])
    shared = state()
    assert shared.status is not None
    shared.status.replication.redis_available = False
    assert row(shown([shared]), "a:1").split()[-1] == "open"


@pytest.mark.parametrize("width", [20, 39, 40, 60, 80, 100, 140, 200])
def test_no_line_of_a_frame_is_wider_than_the_terminal(width: int) -> None:
    text = shown([state("us-east.example.org:50052"), state("b:2")], width=width, height=1_000)
    assert all(len(line.rstrip()) <= width for line in text.splitlines())
    assert "us-east" in text


def test_the_most_important_columns_stay_on_a_narrow_terminal() -> None:
    header = shown([state()], width=60).splitlines()[2]
    assert all(title in header for title in ("server", "health", "req/s", "in time", "p95", "queue"))
    assert "accept" not in header
    assert "engine" not in header


def test_bars_begin_where_the_stages_before_end_and_need_room() -> None:
    wide = shown([state()], width=120)
    begins = [row(wide, stage).index("█") for stage in ("admission", "queue", "tokenise", "prefill")]
    assert begins == sorted(begins)
    assert len(set(begins)) == len(begins)
    assert "░" in row(wide, "queue")
    assert "▓" in row(wide, "queue")
    assert "█" not in shown([state()], width=45)
    assert "prefill" in shown([state()], width=45)


@pytest.mark.parametrize("height", [5, 8, 12, 16, 24, 60])
def test_a_frame_of_many_servers_fits_into_the_lines_of_the_terminal(height: int) -> None:
    states = [state(f"s{number:02}:1", 20) for number in range(12)] + [state("poor:1", 1)]
    text = shown(states, width=120, height=height)
    assert len(text.splitlines()) <= max(height, 7)
    assert "poor:1" in text  # the server with most problems is never left out
    if height < 18:
        assert "more servers, all better than these" in text


def test_before_the_second_reading_the_state_is_shown_without_figures() -> None:
    first = state()
    text = shown([ServerState(first.address, first.health, first.status)])
    assert "figures come after a second reading" in text
    assert "3/8" in text
    assert "prefill" not in text
