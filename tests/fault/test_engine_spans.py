"""vLLM's own spans: a server process with a real engine, and a receiver of OTLP in this process."""

import signal
from pathlib import Path

import grpc
import pytest

from completion.v1.completion_pb2_grpc import CompletionServiceStub
from tests.support.models import TARGET
from tests.support.otlp import grpc_receiver
from tests.support.server import ask, eventually, request
from tests.support.server_process import serving

pytestmark = [pytest.mark.serial, pytest.mark.full]

START_TIMEOUT_S = 300.0
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CONFIG = """
[server]
listen = "127.0.0.1:0"
admin_listen = ""
metrics_listen = ""
[engine]
model = "{model}"
enforce_eager = true
[prompt]
token_healing = false
[traces]
endpoint = "{endpoint}"
sample_ratio = 0
[shed]
budget_ms = 60000
"""
SAMPLED = (("traceparent", f"00-{TRACE}-{SPAN}-01"),)


async def test_vllms_span_of_a_sampled_request_is_a_child_of_the_servers(tmp_path: Path) -> None:
    config = tmp_path / "server.toml"
    with grpc_receiver() as receiver:
        config.write_text(CONFIG.format(model=TARGET, endpoint=receiver.address))
        async with (
            serving(tmp_path, "--json", "--config", str(config), within_s=START_TIMEOUT_S) as server,
            grpc.aio.insecure_channel(server.ready["address"]) as channel,
        ):
            assert receiver.spans == [], "vLLM's start, and the warm-up, are in no request's trace"
            stub = CompletionServiceStub(channel)
            unsampled = await ask(stub, request("def add(a, b):\n    ", max_tokens=2), timeout=60)
            message = request("def sub(a, b):\n    ", sequence=2, max_tokens=2)
            sampled = await ask(stub, message, timeout=60, metadata=SAMPLED)
            assert (unsampled.reason, sampled.reason) == ("length", "length")
            await eventually(lambda: any(span.name == "llm_request" for span in receiver.spans))
            server.process.send_signal(signal.SIGTERM)
            await server.ended(60)
    (root,) = receiver.roots()
    (engine,) = [span for span in receiver.spans if span.name == "llm_request"]
    assert (root.trace_id, root.parent_id) == (TRACE, SPAN)
    assert (engine.trace_id, engine.parent_id) == (TRACE, root.span_id)
    assert engine.resource == root.resource
    children = receiver.children(root)
    assert children["prefill"].begin_s - 0.001 <= engine.begin_s <= engine.end_s <= root.end_s + 1
    assert engine.attributes["gen_ai.usage.completion_tokens"] == 2
    assert engine.attributes["gen_ai.usage.prompt_tokens"] == root.attributes["gen_ai.usage.input_tokens"]
    assert {span.trace_id for span in receiver.spans} == {TRACE}
    warnings = [line for line in server.log.read_text().splitlines() if "telemetry" in line.lower()]
    assert warnings == []
