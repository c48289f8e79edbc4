"""The figures of top, and how they are shown."""

import math
from datetime import UTC, datetime
from io import StringIO

import pytest
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from rich.console import Console

from completion.v1 import admin_pb2
from completion_server.client.top.figures import IntervalChange, figures_of
from completion_server.client.top.poll import ServerState
from completion_server.client.top.readings import BucketHistogram as Counted
from completion_server.client.top.readings import Reading, parse
from completion_server.client.top.view import frame
from completion_server.telemetry.metrics import BUCKETS_S

BOUNDS = (0.1, 0.2, 0.4, math.inf)


@pytest.mark.parametrize(
    ("counts", "share", "expected"),
    [
        ((10, 20, 20, 20), 0.5, 0.1),  # at the end of the first bucket
        ((10, 20, 20, 20), 0.75, 0.15),  # in the middle of the second one
        ((10, 20, 20, 20), 0.25, 0.05),  # the first one begins at 0
        ((0, 0, 10, 10), 0.5, 0.3),  # empty buckets before
        ((5, 5, 5, 10), 0.99, 0.4),  # beyond the last finite bound
        ((0, 10, 10, 10), 0.0, 0.0),
        ((0, 0, 0, 0), 0.5, None),
        ((), 0.5, None),
    ],
)
def test_a_quantile_is_linear_within_its_bucket(
    counts: tuple[float, ...], share: float, expected: float | None
) -> None:
    found = Counted(BOUNDS[: len(counts)], counts).quantile(share)
    assert found == (None if expected is None else pytest.approx(expected))


def test_histograms_of_servers_are_added_by_the_bounds_that_they_share() -> None:
    old = Counted((0.1, 0.4, math.inf), (1, 2, 3))
    assert Counted.merged([Counted(BOUNDS, (1, 2, 3, 4)), old, Counted()]) == Counted((0.1, 0.4, math.inf), (2, 5, 7))
    assert Counted.merged([]).quantile(0.5) is None


def change(before: str, now: str, seconds: float = 2.0) -> IntervalChange:
    first, second = parse(before, 10.0), parse(now, 10.0 + seconds)
    return IntervalChange(second, second.since(first))


def test_percentiles_are_those_of_the_interval_and_leave_out_prefetches() -> None:
    registry = CollectorRegistry()
    ttft = Histogram("completion_ttft_seconds", "Time.", ["trigger"], buckets=BUCKETS_S, registry=registry)
    pages = []
    for seconds in (0.9, 0.03):
        for trigger in ("automatic", "explicit"):
            for _ in range(1000):
                ttft.labels(trigger).observe(seconds)
        ttft.labels("prefetch").observe(1.9)
        pages.append(generate_latest(registry).decode())
    found = figures_of([change(*pages)])
    assert found is not None
    p50, _p95, p99 = found.ttft_ms
    assert p50 is not None
    assert p99 is not None
    assert 20 < p50 < p99 <= 40
    nothing = figures_of([change(pages[1], pages[1])])
    assert nothing is not None
    assert nothing.ttft_ms == (None,) * 3


PAGE = """
completion_requests_total{{outcome="stop",trigger="automatic",shed_reason="",region="{region}"}} {stop}
completion_requests_total{{outcome="shed",trigger="automatic",shed_reason="overload",region="{region}"}} {shed}
completion_slo_requests_total{{result="in_time",region="{region}"}} {stop}
completion_slo_requests_total{{result="shed",region="{region}"}} {shed}
completion_tokens_total{{kind="drafted"}} {drafted}
completion_tokens_total{{kind="accepted_draft"}} {accepted}
completion_cache_hits_total{{level="local"}} {stop}
completion_cache_hits_total{{level="shared"}} {stop}
completion_cache_misses_total{{level="local",reason="absent"}} {stop}
completion_wasted_tokens_total{{outcome="cancelled"}} {stop}
completion_engine_aborted_tokens_total {stop}
completion_engine_generated_tokens_total {generated}
completion_num_speculative_tokens {k}
completion_ttft_budget_seconds 0.2
"""


def text(region: str = "us", stop: int = 0, shed: int = 0, k: int = 2, **counts: int) -> str:
    counts = {"drafted": 0, "accepted": 0, "generated": 0} | counts
    return PAGE.format(region=region, stop=stop, shed=shed, k=k, **counts)


def test_rates_and_shares_of_one_server() -> None:
    found = figures_of([change(text(), text(stop=30, shed=10, drafted=50, accepted=40, generated=600))])
    assert found is not None
    assert (found.requests_per_s, found.in_time_share) == (20.0, 0.75)
    assert (found.outcomes, found.shed) == ({"shed": 0.25, "stop": 0.75}, {"overload": 0.25})
    assert (found.acceptance, found.wasted_share, found.budget_ms) == (0.8, 0.1, 200.0)
    assert found.cache_hit_share == 1.0  # half from memory; Redis answered each miss
    assert found.num_speculative_tokens == (2, 2)
    assert found.prefix_cache_share is None  # no prompt was computed


def test_servers_together_are_weighed_by_what_they_counted() -> None:
    busy = change(text(), text(stop=90, shed=0, k=4))
    idle = change(text("eu"), text("eu", stop=0, shed=10, k=0))
    found = figures_of([busy, idle])
    assert found is not None
    assert (found.requests_per_s, found.in_time_share, found.num_speculative_tokens) == (50.0, 0.9, (0, 4))


STOPPED, USAGE = ("completion_requests_total", frozenset({("outcome", "stop")})), ("completion_kv_usage", frozenset())


@pytest.mark.parametrize(
    ("before", "now", "counted"),
    [
        (Reading(3.0, {STOPPED: 5.0}), Reading(5.0, {STOPPED: 20.0}), Reading(2.0, {STOPPED: 15.0})),
        (Reading(500.0, {STOPPED: 9.0}), Reading(1.0, {STOPPED: 4.0}), Reading(1.0, {STOPPED: 4.0})),
        (Reading(3.0, {STOPPED: 50.0}), Reading(5.0, {STOPPED: 20.0}), Reading(5.0, {STOPPED: 20.0})),
        (Reading(3.0, {USAGE: 0.75}), Reading(5.0, {USAGE: 0.25}), Reading(2.0, {USAGE: -0.5})),
        (None, Reading(5.0, {STOPPED: 4.0}), Reading(5.0, {STOPPED: 4.0})),
    ],
    ids=["runs on", "restarted", "restarted, up for longer", "a falling gauge is no restart", "first"],
)
def test_a_server_that_has_restarted_began_at_0(before: Reading | None, now: Reading, counted: Reading) -> None:
    assert now.since(before) == counted


def test_without_a_server_there_are_no_figures() -> None:
    assert figures_of([]) is None
    empty = figures_of([IntervalChange(Reading(1.0), Reading(1.0))])
    assert empty is not None
    assert (empty.requests_per_s, empty.in_time_share, empty.stages_ms) == (0.0, None, {})


def test_a_page_that_is_no_text_format_is_an_error() -> None:
    with pytest.raises(ValueError, match="could not convert"):
        parse("completion_requests_total not-a-number\n", 1.0)


AT = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
BUCKETS = (("0.01", 10), ("0.1", 18), ("0.2", 20), ("+Inf", 20))
STAGES = ("admission", "queue", "tokenise", "prefill", "decode_token", "stream")


def server_page(num_in_time: int = 19) -> str:
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
    counted = parse(server_page(num_in_time), 2.0)
    return ServerState(name, "SERVING", status, IntervalChange(counted, counted))


def down(name: str = "b:2") -> ServerState:
    return ServerState(name, problem=f"No server answers at {name}.")


def shown(states: list[ServerState], width: int = 200, height: int = 60) -> str:
    console = Console(width=width, height=height, file=StringIO(), highlight=False)
    with console.capture() as capture:
        console.print(frame(states, AT, 2.0, (width, height)))
    return capture.get()


def row(server_page: str, name: str) -> str:
    return next(line for line in server_page.splitlines() if line.startswith(name))


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
