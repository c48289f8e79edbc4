"""The benchmark of the CPU time of a request, in small."""

import shutil
from dataclasses import replace

import pytest
from tokenizers import Tokenizer

from completion_server.text.prompt.builder import PromptBuilder
from completion_server.text.prompt.loading import choose_template
from loadtest.bench.cpu import H2loadError, Sizes, in_process, with_h2load
from loadtest.bench.runner.contest import editors
from loadtest.traffic.scenario import ScenarioError
from loadtest.traffic.trace import make_trace
from tests.support.models import ROOT
from tests.support.vocabularies import EMBEDDED

CONFIG = ROOT / "deploy" / "local" / "server.toml"


def test_the_front_end_and_its_prompts_are_measured_in_process() -> None:
    scenario = editors(sessions=20, requests_per_s=20, seconds=5, seed=0)
    tokenizer = Tokenizer.from_file(str(EMBEDDED))
    template = choose_template(tokenizer.get_vocab(), "embedded")
    found = in_process(make_trace(scenario), scenario, PromptBuilder(tokenizer, template, max_prompt_tokens=1024), 1)
    assert found["front_end_cpu_ms"] > found["prompt_cpu_ms"] > 0


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
