"""The statistics that the recorder makes of requests."""

from dataclasses import replace
from typing import Any

import pytest

from completion.v1 import completion_pb2 as pb
from loadtest.driving.recorder import Recorder
from loadtest.stats import RunStats
from loadtest.targets.editor import take_end
from loadtest.targets.record import Outcome, Record, RunClock
from loadtest.traffic.sections import CriteriaSettings
from loadtest.traffic.typed import Trigger
from tests.unit.loadtest.typed import GOES_ON, request, trace

JUDGED = {"shown", "in_time", "seen", "good", "accepted_chars"}


class RecorderHarness:
    """A recorder of two editors in two regions and an abuser, and the records that it is given."""

    def __init__(self) -> None:
        first, second, third = trace(num_sessions=3).sessions
        sessions = [first, replace(second, region=1), replace(third, user="abuser-0")]
        self.stats = RunStats("made", 10.0, 1.0)
        self.recorder = Recorder(self.stats, sessions, {0: "near", 1: "far"}, CriteriaSettings())

    def begin(self, total_s: float = 0.0, next_key_s: float = 1.0, **fields: Any) -> Record:
        """Begin a request that was intended at 2.5 s, so long ago."""
        made = Record(request(2.5, 2.5 + next_key_s, **fields), RunClock(-2.5 - total_s), self.recorder.ended)
        self.recorder.due(made)
        made.sent_at_s = 2.501
        return made

    async def record(
        self,
        outcome: Outcome = Outcome.ANSWERED,
        *,
        text: str = "",
        ttft_s: float = 0.1,
        total_s: float = 0.2,
        next_key_s: float = 1.0,
        error: str = "",
        **fields: Any,
    ) -> None:
        """Record a request."""
        made = self.begin(total_s, next_key_s, **fields)
        if text:
            made.text_came(text)
            made.first_text_at_s = 2.5 + ttft_s
        made.completion_tokens = 7
        made.end(outcome, error)

    def counters(self, prefix: str = "") -> dict[str, int]:
        return {name: count for name, count in self.stats.total.counters.items() if count and name.startswith(prefix)}

    def ms(self, name: str) -> float:
        return self.stats.total.histograms[name].percentile_ms(50)


async def test_an_answer_that_is_seen() -> None:
    harness = RecorderHarness()
    await harness.record(text=GOES_ON)
    common = {"intended": 1, "sent": 1, "outcome/answered": 1, "shown": 1, "in_time": 1, "seen": 1, "good": 1}
    pauses = {"pauses": 1, "pauses_in_time": 1, "pauses_right": 1, "accepted_chars": len(GOES_ON)}
    region = {f"region/near/{name}": 1 for name in ("intended", "seen", "pauses", "pauses_in_time")}
    rest = {"sessions": 2, "tokens": 7, "seen_tokens": 7, "shown_chars": len(GOES_ON)}
    assert harness.counters() == common | pauses | region | rest
    assert dict(harness.stats.slices[2].counters) == common | pauses | region
    times = {"ttft": 100, "ttft/pause": 100, "ttft/region/near": 100, "ttft/outcome/answered": 100}
    times |= {"total": 200, "total/pause": 200, "lag": 1}
    assert {name: harness.ms(name) for name in times} == pytest.approx(times, rel=0.05)


@pytest.mark.parametrize(
    ("fields", "counted"),
    [
        ({"ttft_s": 0.3}, {"shown"}),
        ({"ttft_s": 0.22}, {"shown", "in_time", "seen", "accepted_chars"}),
        ({"next_key_s": 0.25}, {"shown", "in_time", "good"}),
        ({"total_s": 1.2}, {"shown", "in_time", "seen", "accepted_chars"}),
        ({"text": "other"}, {"shown", "in_time", "seen", "good"}),
        ({"text": ""}, set()),
        ({"next_key_s": float("inf")}, JUDGED),
        ({"trigger": Trigger.PREFETCH, "is_pause": False}, set()),
    ],
)
async def test_conditions_of_a_seen_and_of_a_good_answer(fields: dict[str, Any], counted: set[str]) -> None:
    harness = RecorderHarness()
    await harness.record(**({"text": GOES_ON} | fields))
    assert JUDGED & harness.counters().keys() == counted
    if "trigger" in fields:
        assert harness.counters()["prefetches"] == 1
        assert set(harness.stats.total.histograms) == {"lag"}


async def test_an_abuser_counts_apart() -> None:
    harness = RecorderHarness()
    await harness.record(Outcome.SHED, session=2)
    assert harness.counters() == {"sessions": 2, "abuser/intended": 1, "abuser/outcome/shed": 1}
    assert not harness.stats.total.histograms


async def test_what_an_editor_had_itself_says_nothing_of_its_target() -> None:
    harness = RecorderHarness()
    harness.begin().end_from_cache(GOES_ON)
    counters = harness.counters()
    assert "sent" not in counters
    assert {counters[name] for name in ("outcome/cached", "seen", "good", "pauses", "pauses_cached")} == {1}
    assert harness.ms("ttft/outcome/cached") == 0
    assert not {"lag", "ttft", "ttft/pause", "total"} & set(harness.stats.total.histograms)


async def test_errors_are_counted_by_kind_and_region_up_to_a_number_of_kinds() -> None:
    harness = RecorderHarness()
    for number in range(30):
        await harness.record(Outcome.ERROR, error=f"broken\n {number}", session=1)
    counters, kinds = harness.counters(), harness.counters("error/")
    assert counters["errors"] == counters["outcome/error"] == counters["region/far/errors"] == 30
    assert (len(kinds), kinds["error/broken 0"], kinds["error/other"]) == (20, 1, 11)
    assert set(harness.stats.total.histograms) == {"lag", "total/outcome/error"}


async def test_texts_have_gaps_and_the_server_s_stages_leave_the_front_end_s() -> None:
    harness = RecorderHarness()
    made = harness.begin()
    for text in ("a", "b", "c"):
        made.text_came(text)
    made.sent_at_s, made.first_text_at_s = 2.51, 2.61
    made.server = pb.Timings(queue_ms=30, tokenise_ms=2, prefill_ms=50, decode_ms=9, total_ms=91)
    made.end_whole()
    stages = {"queue": 30, "tokenise": 2, "prefill": 50, "decode": 9, "front_end": 20}
    assert {name: harness.ms(f"stage/{name}") for name in stages} == pytest.approx(stages, rel=0.01)
    assert len(harness.stats.total.histograms["gap"]) == 2


def test_connections_and_generated_tokens() -> None:
    harness = RecorderHarness()
    harness.recorder.connections([0.5, 1.5], num_lost=3)
    harness.recorder.generated(float("nan"))
    assert harness.counters() == {"sessions": 2, "reconnects": 2, "sessions_lost": 3}
    harness.recorder.generated(12.0)
    assert harness.counters()["generated_tokens"] == 12


async def test_answers_from_the_servers_cache_are_counted_by_level() -> None:
    harness = RecorderHarness()
    for level in (pb.CACHE_LEVEL_NONE, pb.CACHE_LEVEL_LOCAL, pb.CACHE_LEVEL_SHARED):
        end = pb.End(text=GOES_ON, finish_reason=pb.FINISH_REASON_STOP, usage=pb.Usage(cache_level=level))
        take_end(harness.begin(), end)
    assert harness.counters("outcome/") == {"outcome/answered": 3}
    assert harness.counters("cache/") == {"cache/local": 1, "cache/shared": 1}
