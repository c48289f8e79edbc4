"""The report of the capacity benchmark, from hand-made rounds."""

import io
import json

import pytest
from rich.console import Console

from loadtest.bench.capacity.contestants import OURS, OURS_UNCACHED, VLLM, VLLM_SAME_PROMPTS, caches
from loadtest.bench.capacity.report import Findings, details, headline, picture, table
from loadtest.bench.capacity.trials import SHARE, Promise
from loadtest.search import Trial


def trials(passes: int, lag_ms: float = 1.0) -> tuple[Trial, ...]:
    """Return a search that ends at a number of editors."""
    figures = {"pauses": 40.0, "lag_ms_p99": lag_ms}
    return (
        Trial(passes, True, {SHARE: 0.9} | figures),
        Trial(2 * passes, False, {SHARE: 0.2, "missed_late": 32.0} | figures),
    )


def findings(context: str, *rounds: tuple[int, int, int]) -> Findings:
    found = Findings(context, f"{context} context", Promise())
    for ours, vllm, same in rounds:
        found.add({OURS: trials(ours, 3.0), VLLM: trials(vllm), VLLM_SAME_PROMPTS: trials(same)})
    return found


FOUND = [
    findings("short", (40, 20, 30), (44, 22, 33), (36, 18, 27)),
    findings("long", (30, 10, 31), (32, 11, 30), (28, 9, 29)),
]


def test_the_headline_has_the_editors_and_the_ratios_with_intervals() -> None:
    figures = headline(FOUND)
    assert figures["editors_short"] == pytest.approx(39.9, abs=0.1)
    assert (figures["ratio_short"], figures["ratio_short_low"], figures["ratio_short_high"]) == (2, 2, 2)
    assert figures["ratio_short_same_prompts"] == pytest.approx(4 / 3, abs=0.001)
    assert figures["ratio_long"] == pytest.approx(3, abs=0.1)
    assert figures["ratio_long_low"] < 3 < figures["ratio_long_high"]  # type: ignore[operator]
    assert figures["generator_lag_ms_p99"] == 1.0
    assert "ratio_long_llama_cpp" not in figures, "it did not take part"
    assert FOUND[0].is_decided
    assert not FOUND[1].is_decided, "with our prompts both serve about 30"


def test_one_round_has_no_intervals_and_is_valid_json() -> None:
    found = [findings("short", (40, 20, 30))]
    text = json.dumps(headline(found) | details(found), allow_nan=False)
    assert json.loads(text)["ratio_short_low"] is None
    assert not found[0].is_decided


def test_every_trial_is_in_the_details() -> None:
    found = details(FOUND)["long"][VLLM]
    assert found["editors_by_round"] == [10, 11, 9]
    assert [[each["editors"] for each in search] for search in found["trials"]] == [[10, 20], [11, 22], [9, 18]]
    assert found["trials"][0][1]["missed_late"] == 32


def test_the_table_and_the_picture_name_all_contestants() -> None:
    out = io.StringIO()
    Console(file=out, width=140).print(table(FOUND))
    svg = picture(FOUND)
    assert svg.startswith("<?xml")
    for name in (OURS, VLLM, VLLM_SAME_PROMPTS, "short context", "long context"):
        assert name in out.getvalue()
        assert name in svg
    assert "2.00" in out.getvalue()


def test_the_gain_of_the_completion_cache_is_reported_and_decides_nothing() -> None:
    found = Findings("short", "short context", Promise())
    for number in range(3):
        found.add({OURS: trials(40), OURS_UNCACHED: trials(39 + number), VLLM: trials(20)})
    figures = headline([found])
    assert figures["ratio_short_cache_off"] == pytest.approx(1, abs=0.01)
    assert found.is_decided
    alone = Findings("short", "short context", Promise())
    alone.add({OURS: trials(40), OURS_UNCACHED: trials(10)})
    assert not alone.is_decided, "rounds go on until the time is up"


@pytest.mark.parametrize("configured", [True, False])
def test_this_server_is_measured_as_configured_and_without_its_completion_cache(configured: bool) -> None:
    found = caches({"cache": {"enabled": configured}})
    assert found == {OURS: str(configured).lower(), OURS_UNCACHED: "false"}
