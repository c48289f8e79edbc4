"""What an engine with spans leaves behind in the server's process, and the environment of its own processes."""

import os
import threading

import pytest

async_llm = pytest.importorskip("vllm.v1.engine.async_llm")
spans = pytest.importorskip("completion_server.engine.vllm.spans")


def test_an_engine_that_starts_again_leaves_no_exporter_in_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", raising=False)
    init_tracer, before = async_llm.init_tracer, set(threading.enumerate())
    for _start in range(2):
        with spans.only_in_server():
            async_llm.init_tracer("vllm.llm_engine", "http://127.0.0.1:1")  # as AsyncLLM does
    assert set(threading.enumerate()) == before
    assert "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT" not in os.environ
    assert async_llm.init_tracer is init_tracer


@pytest.mark.parametrize("given", [None, "false"])
def test_the_engines_processes_export_nothing(monkeypatch: pytest.MonkeyPatch, given: str | None) -> None:
    if given is None:
        monkeypatch.delenv("OTEL_SDK_DISABLED", raising=False)
    else:
        monkeypatch.setenv("OTEL_SDK_DISABLED", given)
    with spans.only_in_server():
        assert os.environ["OTEL_SDK_DISABLED"] == "true"
    assert os.environ.get("OTEL_SDK_DISABLED") == given
