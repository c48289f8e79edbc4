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


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("block_sise", r"engine\.vllm\.block_sise: .*did you mean 'block_size'\?"),
        ("model", r"engine\.vllm\.model: set engine\.model instead"),
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


def gpu(**found: Any) -> dict[str, Any]:
    """Return the steps of a GPU and their largest sizes."""
    return {"max_num_batched_tokens": 2048, "long_prefill_token_threshold": 1024, "block_size": None} | found


DRAFTS, NGRAM, PARALLEL = {"draft_model": "d"}, {"draft_model": "ngram"}, {"data_parallel_size": 2}


@pytest.mark.parametrize(
    ("is_cpu", "settings", "expected"),
    [
        (True, {}, {"block_size": CPU_BLOCK_SIZE, "max_num_batched_tokens": None, "enforce_eager": False}),
        (True, {"vllm": {"block_size": 64}}, {"block_size": 64}),
        (True, {"enforce_eager": True}, {"enforce_eager": True}),
        (False, {}, gpu()),
        (False, {"max_model_len": 512}, gpu(long_prefill_token_threshold=None)),
        (
            False,
            {"max_num_seqs": 256, "draft_model": "d", "num_speculative_tokens": 7},
            gpu(max_num_batched_tokens=4096),
        ),
        (False, {"vllm": {"enable_chunked_prefill": False}}, {"max_num_batched_tokens": None}),
        (False, {"vllm": {"max_num_batched_tokens": 512}}, gpu(max_num_batched_tokens=512)),
        (False, NGRAM, {ROWS: [[1, 29, 4], [30, 30, 2], [31, 31, 1], [32, 32, 0]]}),
        (False, NGRAM | {"num_speculative_tokens": 1}, {ROWS: [[1, 31, 1], [32, 32, 0]]}),
        (False, NGRAM | {"max_num_seqs": 1}, {ROWS: [[1, 1, 4]]}),
        (True, NGRAM, {ROWS: [[1, 32, 4]]}),
        (False, DRAFTS, {ROWS: [[1, 32, 4]], "locked": ""}),
        (False, DRAFTS | {"full_cuda_graphs": True}, {ROWS: None, "locked": ""}),
        (False, NGRAM | {"max_num_seqs": 1, "full_cuda_graphs": True}, {ROWS: [[1, 1, 4]]}),
        (False, DRAFTS | {"vllm": PARALLEL}, {ROWS: None, "locked": "vLLM keeps K constant under data parallelism"}),
        (
            False,
            DRAFTS | {"vllm": {"scheduler_cls": "some.other.Scheduler"}},
            {ROWS: None, "locked": "engine.vllm.scheduler_cls names another scheduler"},
        ),
    ],
)
def test_settings_as_vllms_arguments(
    arguments: Any, monkeypatch: pytest.MonkeyPatch, is_cpu: bool, settings: dict[str, Any], expected: dict[str, Any]
) -> None:
    """None stands for an argument that is vLLM's own to choose."""
    monkeypatch.setattr(arguments, "current_platform", SimpleNamespace(is_cpu=lambda: is_cpu))
    monkeypatch.setattr(arguments, "cannot_compile_reason", lambda: "")
    given = EngineSettings(**{"model": "m", "max_num_seqs": 32} | settings)
    found = arguments.engine_args(given)
    found |= found.get("speculative_config", {}) | {"locked": arguments.settings_locked_reason(given)}
    assert {key: found.get(key) for key in expected} == expected


def test_an_engine_starts_with_its_largest_k_or_the_operators_schedule(arguments: Any) -> None:
    speculative = SimpleNamespace(num_speculative_tokens=4, **{ROWS: [[1, 2, 4], [3, 3, 2], [4, 4, 0]]})
    made: Any = SimpleNamespace(scheduler_config=SimpleNamespace(max_num_seqs=4), speculative_config=speculative)
    ours = EngineSettings(model="m", draft_model="ngram")
    operators = EngineSettings(model="m", vllm={"speculative_config": {"method": "ngram"}})
    assert arguments.lookup_at_start(ours, made, "") == constant_lookup(4, 4)
    assert arguments.lookup_at_start(operators, made, "") == (0, 4, 4, 2, 0)
    assert arguments.lookup_at_start(ours, made, "this vLLM has other schedulers") == (0, 4, 4, 2, 0)


@pytest.mark.filterwarnings("ignore")  # of imports
def test_a_vllm_whose_schedulers_are_elsewhere_keeps_its_k(arguments: Any) -> None:
    assert arguments.schedulers_locked_reason("completion_server.engine.vllm.drafts.schedulers") == ""
    assert "other schedulers: No module named" in arguments.schedulers_locked_reason("tests.support.no_schedulers")


def test_a_folders_revision_is_not_vllms_to_know(arguments: Any, tmp_path: Path) -> None:
    """Its compiled code has a name that depends on the revision, and fits any revision of the same shape."""
    hub = EngineSettings(model="a/m", revision="1", draft_model="a/d", draft_revision="2")
    folder = EngineSettings(model=str(tmp_path), revision="1", draft_model=str(tmp_path), draft_revision="2")
    for settings, expected in ((hub, ("1", "2")), (folder, (None, None))):
        found = arguments.engine_args(settings)
        assert (found["revision"], found["speculative_config"]["revision"]) == expected


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


S3 = "s3://models/target/revision-1/"


@pytest.mark.parametrize(
    ("weights", "load_format", "fault"),
    [
        (S3, "auto", r'load_format: must be "runai_streamer" with model_weights, got "auto"'),
        ("/models/target", "runai_streamer", r"model_weights: must begin with s3:// or gs:// or az://, got /models"),
        ("gs://models/", "runai_streamer", 'load_format: "runai_streamer" needs .*model-streamer-gcs, not installed'),
        (S3, "runai_streamer", ""),
        ("", "runai_streamer", ""),
    ],
)
def test_weights_are_elsewhere_only_where_they_can_be_streamed(
    arguments: Any, weights: str, load_format: str, fault: str
) -> None:
    vllm = {"load_format": load_format, "model_weights": weights}
    if not fault:
        arguments.check_streaming(vllm)
        return
    with pytest.raises(ConfigError, match=rf"engine\.vllm\.{fault}"):
        arguments.check_streaming(vllm)


@pytest.mark.parametrize(
    ("key", "remedy"),
    [("model", r"its weights alone can be streamed \(vllm\.model_weights\)"), ("draft_model", "copy it")],
)
def test_a_model_whose_small_files_are_in_a_storage_is_refused(key: str, remedy: str) -> None:
    fault = rf"^{key}: must be the path of a folder or a hub id, got {S3}; {remedy}$"
    with pytest.raises(ValueError, match=fault):
        EngineSettings(**{"model": "m", key: S3})
