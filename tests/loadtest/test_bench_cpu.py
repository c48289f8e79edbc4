"""The benchmark of the CPU time of a request, in small."""

import shutil
from dataclasses import replace

import pytest
from tokenizers import Tokenizer

from completion_server.prompt.builder import PromptBuilder
from completion_server.prompt.loading import choose_template
from loadtest.bench.cpu import H2loadError, Sizes, with_h2load
from loadtest.bench.cpu_in_process import Passes
from loadtest.bench.runner.editing import editors
from loadtest.traffic.scenario import ScenarioError
from loadtest.traffic.trace import make_trace
from tests.support.models import ROOT
from tests.support.vocabularies import EMBEDDED

CONFIG = ROOT / "deploy" / "local" / "server.toml"


def passes_of(num_editors: int) -> Passes:
    scenario = editors(sessions=num_editors, requests_per_s=num_editors, seconds=5, seed=0)
    tokenizer = Tokenizer.from_file(str(EMBEDDED))
    template = choose_template(tokenizer.get_vocab(), "embedded")
    return Passes(make_trace(scenario), scenario, PromptBuilder(tokenizer, template, max_prompt_tokens=1024))


def test_each_part_of_a_request_is_measured_in_process() -> None:
    found = passes_of(20).measure()
    assert found["front_end"] > 0
    assert found["pipeline"] > found["prompt"] > 0
    assert found["pipeline"] > found["engine"] > 0


def test_a_rate_that_the_editors_cannot_send_is_refused() -> None:
    with pytest.raises(ScenarioError, match="requests-per-s: 10 editors ask at most"):
        editors(sessions=10, requests_per_s=1000, seconds=5, seed=0)


@pytest.mark.full
@pytest.mark.skipif(shutil.which("h2load") is None, reason="h2load is not installed (Debian: nghttp2-client)")
def test_h2load_measures_only_requests_that_were_answered() -> None:
    sizes = Sizes(config=CONFIG, rounds=1, seconds=1.0)
    found = with_h2load(sizes)
    assert min(found.values()) > 0
    assert found["h2load_ratio_to_bare"] == found["h2load_cpu_ms"] / found["h2load_bare_cpu_ms"]
    with pytest.raises(H2loadError, match="did not answer all requests"):
        with_h2load(replace(sizes, overrides=("limits.max_prefix_bytes=1000",)))
