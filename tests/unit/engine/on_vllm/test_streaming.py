"""What `check-config` says of weights that are to be streamed."""

from importlib.util import find_spec
from typing import Any

import pytest

from completion_server.core.errors import ConfigError
from completion_server.engine.settings import EngineSettings
from completion_server.engine.vllm import streaming
from completion_server.engine.vllm.streaming import check_streaming

S3 = "s3://models/target/revision-1/"


@pytest.mark.parametrize(
    ("vllm", "fault"),
    [
        ({"model_weights": S3}, r'load_format: must be "runai_streamer" with model_weights, got "auto"'),
        ({"model_weights": S3, "load_format": "auto"}, r'load_format: must be .*, got "auto"'),
        ({"model_weights": S3, "load_format": "safetensors"}, r'load_format: must be .*, got "safetensors"'),
        (
            {"model_weights": "/models/target", "load_format": "runai_streamer"},
            r"model_weights: must begin with s3:// or gs:// or az://, got /models/target",
        ),
        (
            {"model_weights": "https://models/target", "load_format": "runai_streamer"},
            r"model_weights: must begin with .*, got https://models/target",
        ),
    ],
)
def test_weights_that_vllm_would_not_stream(vllm: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigError, match=rf"engine\.vllm\.{fault}"):
        check_streaming(vllm)


@pytest.mark.parametrize(
    ("weights", "missing"),
    [
        ("", "runai-model-streamer"),
        (S3, "runai-model-streamer and runai-model-streamer-s3"),
        ("gs://models/1/", "runai-model-streamer and runai-model-streamer-gcs"),
        ("az://models/1/", "runai-model-streamer and runai-model-streamer-azure"),
    ],
)
def test_packages_that_are_missing_are_named(weights: str, missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "find_spec", lambda name: find_spec(f"no_{name}"))
    vllm = {"load_format": "runai_streamer"} | ({"model_weights": weights} if weights else {})
    with pytest.raises(ConfigError, match=rf'load_format: "runai_streamer" needs {missing}, not installed'):
        check_streaming(vllm)


@pytest.mark.parametrize(
    ("key", "remedy"),
    [("model", r"its weights alone can be streamed \(vllm\.model_weights\)"), ("draft_model", "copy it")],
)
def test_a_model_whose_small_files_are_in_a_storage_is_refused(key: str, remedy: str) -> None:
    fault = rf"^{key}: must be the path of a folder or a hub id, got {S3}; {remedy}$"
    with pytest.raises(ValueError, match=fault):
        EngineSettings(**{"model": "m", key: S3})
