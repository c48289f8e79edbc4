"""The figures of `make bench-canary`."""

import json

import pytest
from click.testing import CliRunner

from loadtest.bench.canary import main, quantile_of_found, upper_bound
from loadtest.simulation.rollouts import Verdict
from tests.support.models import ROOT


def test_the_bound_of_a_share_without_a_hit_is_that_of_a_power() -> None:
    bound = upper_bound(0, 300)
    assert (1 - bound) ** 300 == pytest.approx(0.05)
    assert upper_bound(3, 300) > bound
    assert upper_bound(5, 5) == 1


def test_canaries_that_were_not_found_count_in_a_quantile() -> None:
    ends = [Verdict(10, 100), Verdict(30, 300), Verdict(20, 200), Verdict(None, 900)]
    assert quantile_of_found(ends, 0.5) == 200
    assert quantile_of_found(ends, 0.75) == 300
    assert quantile_of_found(ends, 0.95) is None


def test_the_benchmark_runs() -> None:
    done = CliRunner().invoke(main, ["--equal", "1", "--worse", "1", "--minutes", "45", "--processes", "1", "--json"])
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout)
    assert figures["equal_400_stopped"] in {0, 1}
    assert figures["accepted_40_2000_found_in_soak"] == 1


def test_the_recorded_error_rate_is_the_promised_one() -> None:
    figures = json.loads((ROOT / "benchmarks" / "canary.json").read_text("utf-8"))["figures"]
    for users in (400, 1000, 2000):
        assert figures[f"equal_{users}_stopped"] <= 0.01
        assert figures[f"equal_{users}_stopped_at_most"] <= 0.0125
        assert figures[f"equal_{users}_stopped_as_if_independent"] > 0.02
    assert figures["accepted_20_2000_found_in_soak"] >= 0.9
