"""The section `[traces]`."""

from pathlib import Path

import pytest

from completion_server.config import load_config
from completion_server.core.errors import ConfigError


@pytest.mark.parametrize(
    ("override", "fault"),
    [
        ("traces.endpoint=collector:4317", "traces.endpoint: must be http://HOST:PORT or https://HOST:PORT, got"),
        ("traces.endpoint=http://", "traces.endpoint: must be http://HOST:PORT"),
        ("traces.endpoint=http://a:99999", "traces.endpoint: must be http://HOST:PORT"),
        ("traces.endpoint=http://me:pw@a:4317", "traces.endpoint: must not hold a password"),
        ("traces.protocol=udp", "traces.protocol: input should be 'grpc' or 'http', got 'udp'"),
        ("traces.sample_ratio=1.5", "traces.sample_ratio: must be at most 1, got 1.5"),
        ("traces.max_queued_spans=1", "traces.max_queued_spans: must be at least 64, got 1"),
        ("traces.timeout_s=0", "traces.timeout_s: must be above 0, got 0"),
        ("traces.ca=/no/such.pem", "traces.ca: needs an endpoint that begins with https://"),
        ("traces.headers_file=/no/such", "traces.headers_file: no file /no/such"),
        ("traces.sampel_ratio=1", "traces.sampel_ratio: unknown key; did you mean traces.sample_ratio?"),
    ],
)
def test_a_fault_names_the_key_the_limit_and_the_value(override: str, fault: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config(None, [override], {})
    assert fault in str(refused.value)


def test_files_are_relative_to_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "headers").write_text("a: b")
    (tmp_path / "server.toml").write_text('[traces]\nendpoint = "http://a:4317"\nheaders_file = "headers"\n')
    assert load_config(tmp_path / "server.toml", (), {}).traces.headers_file == str(tmp_path / "headers")


def test_vllms_own_key_is_refused_beside_the_section() -> None:
    overrides = ["traces.endpoint=http://a:4317", "engine.vllm.otlp_traces_endpoint=http://b:4317"]
    with pytest.raises(ConfigError, match=r"engine\.vllm\.otlp_traces_endpoint: must not be set beside"):
        load_config(None, overrides, {})
    assert load_config(None, overrides[1:], {}).engine.vllm
