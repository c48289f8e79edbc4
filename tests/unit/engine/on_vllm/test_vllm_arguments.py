"""The arguments of vLLM's engine: what they are made of, what is refused, and what its configuration says of K."""

import os
import re
import sysconfig
import warnings
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from completion_server.config import load_config
from completion_server.core.errors import ConfigError
from completion_server.engine.interface import constant_lookup
from completion_server.engine.settings import CPU_BLOCK_SIZE, EngineSettings
from completion_server.engine.vllm.environment import RUNNER, engine_environment
from loadtest.bench.gpu.models import session_settings

pytest.importorskip("vllm")

ROWS = "num_speculative_tokens_per_batch_size"
DRAFTING = EngineSettings(model="m", draft_model="d")


@pytest.fixture(scope="module")
def arguments() -> Any:
    """Return the module; importing it takes seconds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return import_module("completion_server.engine.vllm.arguments")


@pytest.fixture
def on_a_gpu(arguments: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments, "current_platform", SimpleNamespace(is_cpu=lambda: False))


def test_an_option_of_the_operator_replaces_the_servers_choice(arguments: Any) -> None:
    assert arguments.engine_args(EngineSettings(model="m"))["block_size"] == CPU_BLOCK_SIZE
    assert arguments.engine_args(EngineSettings(model="m", vllm={"block_size": 64}))["block_size"] == 64


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("block_sise", r"engine\.vllm\.block_sise: .*did you mean 'block_size'\?"),
        ("dtype", r"engine\.vllm\.dtype: set engine\.dtype instead"),
    ],
)
def test_an_option_that_vllm_does_not_know_or_that_has_a_key_is_refused(
    arguments: Any, option: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        arguments.engine_args(EngineSettings(model="m", vllm={option: 64}))


@pytest.mark.parametrize("draft", [512, 1024, None])
def test_a_draft_model_shorter_than_the_target_is_refused_with_the_length_to_set(
    arguments: Any, draft: int | None
) -> None:
    model = SimpleNamespace(max_model_len=draft)
    speculative = None if draft is None else SimpleNamespace(draft_model_config=model)
    config = SimpleNamespace(model_config=SimpleNamespace(max_model_len=1024), speculative_config=speculative)
    if draft != 512:
        arguments.check_draft_length(config)
        return
    with pytest.raises(ConfigError, match=r"max_model_len: the draft model holds 512 .*got 1024.*max_model_len=512"):
        arguments.check_draft_length(config)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, {"max_num_batched_tokens": 2048, "long_prefill_token_threshold": 1024}),
        ({"max_model_len": 512}, {"max_num_batched_tokens": 2048}),
        (
            {"draft_model": "d", "num_speculative_tokens": 7, "max_num_seqs": 256, "max_model_len": 1024},
            {"max_num_batched_tokens": 4096, "long_prefill_token_threshold": 1024},
        ),
        ({"vllm": {"enable_chunked_prefill": False}}, {}),
        (
            {"vllm": {"max_num_batched_tokens": 512}},
            {"max_num_batched_tokens": 512, "long_prefill_token_threshold": 1024},
        ),
    ],
    ids=["usual", "short", "many drafts", "whole prompts", "an operator's choice"],
)
@pytest.mark.usefixtures("on_a_gpu")
def test_a_step_of_a_gpu_is_short_and_holds_all_drafts(
    arguments: Any, settings: dict[str, Any], expected: dict[str, Any]
) -> None:
    args = arguments.engine_args(EngineSettings(model="m", **settings))
    sizes = {key: args[key] for key in ("max_num_batched_tokens", "long_prefill_token_threshold") if key in args}
    assert (sizes, args["performance_mode"]) == (expected, "interactivity")


def test_an_engine_on_a_cpu_gets_no_step_sizes(arguments: Any) -> None:
    sizes = {"max_num_batched_tokens", "long_prefill_token_threshold", "performance_mode"}
    assert not sizes & arguments.engine_args(EngineSettings(model="m")).keys()


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
    arguments: Any,
    monkeypatch: pytest.MonkeyPatch,
    draft_model: str,
    is_cpu: bool,
    k: int,
    num_seqs: int,
    rows: list[list[int]],
) -> None:
    monkeypatch.setattr(arguments, "current_platform", SimpleNamespace(is_cpu=lambda: is_cpu))
    monkeypatch.setattr(arguments, "cannot_compile_reason", lambda: "")
    settings = EngineSettings(model="m", draft_model=draft_model, num_speculative_tokens=k, max_num_seqs=num_seqs)
    assert arguments.engine_args(settings)["speculative_config"][ROWS] == rows


def test_an_engine_starts_with_its_largest_k_or_the_operators_schedule(arguments: Any) -> None:
    speculative = SimpleNamespace(num_speculative_tokens=4, **{ROWS: [[1, 2, 4], [3, 3, 2], [4, 4, 0]]})
    made: Any = SimpleNamespace(scheduler_config=SimpleNamespace(max_num_seqs=4), speculative_config=speculative)
    ours = EngineSettings(model="m", draft_model="ngram")
    operators = EngineSettings(model="m", vllm={"speculative_config": {"method": "ngram"}})
    assert arguments.lookup_at_start(ours, made, "") == constant_lookup(4, 4)
    assert arguments.lookup_at_start(operators, made, "") == (0, 4, 4, 2, 0)
    assert arguments.lookup_at_start(ours, made, "this vLLM has other schedulers") == (0, 4, 4, 2, 0)


@pytest.mark.parametrize(
    ("vllm", "message"),
    [
        ({"data_parallel_size": 2}, "under data parallelism"),
        ({"scheduler_cls": "some.other.Scheduler"}, "names another scheduler"),
    ],
)
def test_vllm_is_started_without_a_schedule_if_k_is_locked(arguments: Any, vllm: dict[str, Any], message: str) -> None:
    kept = EngineSettings(model="m", draft_model="d", vllm=vllm)
    assert ROWS in arguments.engine_args(DRAFTING)["speculative_config"]
    assert ROWS not in arguments.engine_args(kept)["speculative_config"]
    assert message in arguments.settings_locked_reason(kept)
    assert arguments.settings_locked_reason(DRAFTING) == ""


@pytest.mark.parametrize(("draft_model", "has_schedule"), [("d", False), ("ngram", True)])
def test_full_cuda_graphs_need_an_engine_without_a_schedule(
    arguments: Any, draft_model: str, has_schedule: bool
) -> None:
    settings = EngineSettings(model="m", draft_model=draft_model, full_cuda_graphs=True)
    assert (ROWS in arguments.engine_args(settings)["speculative_config"]) == has_schedule
    assert arguments.settings_locked_reason(settings) == ""


@pytest.mark.filterwarnings("ignore")  # of imports
def test_a_vllm_whose_schedulers_are_elsewhere_keeps_its_k(arguments: Any) -> None:
    assert arguments.schedulers_locked_reason("completion_server.engine.vllm.drafts.schedulers") == ""
    assert "other schedulers: No module named" in arguments.schedulers_locked_reason("tests.support.no_schedulers")


@pytest.mark.parametrize(
    ("settings", "runner"),
    [
        ({"draft_model": "d"}, "0"),
        ({"draft_model": "d", "vllm": {"data_parallel_size": 2}}, "0"),
        ({"vllm": {"speculative_config": {"model": "d", "num_speculative_tokens": 2}}}, "0"),
        ({"draft_model": "d", "num_speculative_tokens": 0}, None),
        ({"draft_model": "ngram"}, None),
    ],
    ids=["draft model", "locked K", "named for vLLM", "K = 0", "n-gram"],
)
def test_the_older_runner_runs_draft_models_alone(arguments: Any, settings: dict[str, Any], runner: str | None) -> None:
    given = arguments.engine_args(EngineSettings(model="m", **settings)).get("speculative_config")
    assert engine_environment(given, {}).get(RUNNER) == runner


def test_models_are_compiled_unless_switched_off(arguments: Any) -> None:
    assert arguments.cannot_compile_reason() == ""
    assert arguments.engine_args(EngineSettings(model="m"))["enforce_eager"] is False
    assert arguments.engine_args(EngineSettings(model="m", enforce_eager=True))["enforce_eager"] is True


def test_a_folders_revision_is_not_vllms_to_know(arguments: Any, tmp_path: Path) -> None:
    """Its compiled code has a name that depends on the revision, and fits any revision of the same shape."""
    hub = EngineSettings(model="a/m", revision="1", draft_model="a/d", draft_revision="2")
    folder = EngineSettings(model=str(tmp_path), revision="1", draft_model=str(tmp_path), draft_revision="2")
    for settings, expected in ((hub, ("1", "2")), (folder, (None, None))):
        found = arguments.engine_args(settings)
        assert (found["revision"], found["speculative_config"]["revision"]) == expected


def test_vllm_has_what_streams_weights(arguments: Any) -> None:
    streamed = {"load_format": "runai_streamer", "model_weights": "s3://models/1/"}
    assert arguments.engine_args(EngineSettings(model="m", vllm=streamed)).items() >= streamed.items()


def test_a_machine_that_cannot_compile_runs_uncompiled_unless_told_to_compile(
    arguments: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert arguments.engine_args(EngineSettings(model="m"))["enforce_eager"] is True
    reason = "there is no C++ compiler 'no-such-compiler': install g++"
    assert f"the model runs uncompiled, which is slower; {reason}" in caplog.text
    with pytest.raises(ConfigError, match=rf"enforce_eager: must be true or unset .*, got false; {re.escape(reason)}"):
        arguments.engine_args(EngineSettings(model="m", enforce_eager=False))


def test_without_headers_or_a_cache_folder_it_cannot_compile(
    arguments: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "missing" / "too"
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(folder))
    assert arguments.cannot_compile_reason() == ""
    monkeypatch.setattr(os, "access", lambda path, _mode: path != tmp_path)
    assert f"vLLM's cache folder {folder} can't be written" in arguments.cannot_compile_reason()
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    header = tmp_path / "Python.h"
    assert arguments.cannot_compile_reason().startswith(f"Python's headers are not installed ({header})")


@pytest.mark.filterwarnings("ignore")  # of imports
def test_vllm_has_what_is_used_on_a_gpu(arguments: Any) -> None:
    """Without a GPU there is no other test of these arguments and attributes."""
    from vllm.config.speculative import SpeculativeConfig
    from vllm.engine.arg_utils import AsyncEngineArgs

    known, drafting = AsyncEngineArgs.__dataclass_fields__.keys(), SpeculativeConfig.__dataclass_fields__.keys()
    served = load_config(None, session_settings(Path("models")), {})
    assert served.engine.max_num_speculative_tokens == 5
    for args in (served.engine.vllm, arguments.gpu_batch_args(DRAFTING)):
        assert args.keys() <= known
        assert args.get("speculative_config", {}).keys() <= drafting
