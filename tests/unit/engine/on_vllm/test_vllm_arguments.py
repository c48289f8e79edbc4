"""The arguments of vLLM's engine, and what its configuration says: the schedule of K, the draft model's length."""

from types import SimpleNamespace
from typing import Any

import pytest

from completion_server.core.errors import ConfigError
from completion_server.engine.interface import constant_lookup
from completion_server.engine.settings import EngineSettings

pytest.importorskip("vllm")


def config(target: int, draft: int | None) -> Any:
    speculative = None if draft is None else SimpleNamespace(draft_model_config=SimpleNamespace(max_model_len=draft))
    return SimpleNamespace(model_config=SimpleNamespace(max_model_len=target), speculative_config=speculative)


def test_a_short_draft_model_is_refused_with_the_length_to_set() -> None:
    from completion_server.engine.vllm.arguments import check_draft_length

    with pytest.raises(ConfigError, match=r"max_model_len: the draft model holds 512 .*got 1024.*max_model_len=512"):
        check_draft_length(config(1024, 512))


@pytest.mark.parametrize("draft", [1024, None])
def test_other_engines_start(draft: int | None) -> None:
    from completion_server.engine.vllm.arguments import check_draft_length

    check_draft_length(config(1024, draft))


ROWS = "num_speculative_tokens_per_batch_size"


@pytest.mark.parametrize(
    ("draft_model", "is_cpu", "k", "num_seqs", "rows"),
    [
        ("ngram", False, 4, 32, [[1, 29, 4], [30, 30, 2], [31, 31, 1], [32, 32, 0]]),
        ("ngram", False, 1, 32, [[1, 31, 1], [32, 32, 0]]),
        ("ngram", False, 4, 2, [[1, 1, 4], [2, 2, 2]]),
        ("ngram", False, 4, 1, [[1, 1, 4]]),
        ("ngram", True, 4, 32, [[1, 32, 4]]),
        ("d", False, 4, 32, [[1, 32, 4]]),
    ],
)
def test_the_schedule_names_each_k_that_needs_graphs_of_its_own(
    monkeypatch: pytest.MonkeyPatch, draft_model: str, is_cpu: bool, k: int, num_seqs: int, rows: list[list[int]]
) -> None:
    from completion_server.engine.vllm import arguments

    monkeypatch.setattr(arguments, "current_platform", SimpleNamespace(is_cpu=lambda: is_cpu))
    monkeypatch.setattr(arguments, "cannot_compile_reason", lambda: "")
    settings = EngineSettings(model="m", draft_model=draft_model, num_speculative_tokens=k, max_num_seqs=num_seqs)
    assert arguments.engine_args(settings)["speculative_config"][ROWS] == rows


def test_an_engine_starts_with_its_largest_k_or_the_operators_schedule() -> None:
    from completion_server.engine.vllm.arguments import lookup_at_start

    speculative = SimpleNamespace(num_speculative_tokens=4, **{ROWS: [[1, 2, 4], [3, 3, 2], [4, 4, 0]]})
    made: Any = SimpleNamespace(scheduler_config=SimpleNamespace(max_num_seqs=4), speculative_config=speculative)
    ours = EngineSettings(model="m", draft_model="ngram")
    operators = EngineSettings(model="m", vllm={"speculative_config": {"method": "ngram"}})
    assert lookup_at_start(ours, made, "") == constant_lookup(4, 4)
    assert lookup_at_start(operators, made, "") == (0, 4, 4, 2, 0)
    assert lookup_at_start(ours, made, "this vLLM has other schedulers") == (0, 4, 4, 2, 0)
