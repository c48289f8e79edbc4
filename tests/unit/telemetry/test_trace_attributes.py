"""The names of attributes are OpenTelemetry's where it has one."""

from opentelemetry.semconv._incubating.attributes import cloud_attributes, gen_ai_attributes, rpc_attributes
from opentelemetry.semconv.attributes import error_attributes, service_attributes

from completion_server.core.errors import UnavailableError
from completion_server.core.events import GenerationSource, Marks, RequestEnded
from completion_server.core.outcome import CacheLevel, End, FinishReason, Outcome, ShedReason, Usage
from completion_server.core.request import Caller, Request
from completion_server.core.trace_context import TraceContext
from completion_server.telemetry.quality import model_name
from completion_server.telemetry.tracing.spans import describe
from completion_server.telemetry.tracing.tracing import Service

REQUEST = Request("r", Caller("u", "s"), 0, "file:///x.py", "python", "x = ", "", 8, 0.0, receive_began_at=-0.01)
MARKS = Marks(0.0, 0.001, 0.002, 0.003, 0.004, 0.005, 1, 0.006, source=GenerationSource.OWN)
OUTCOME = Outcome(FinishReason.ERROR, ShedReason.OVERLOAD, error=UnavailableError("secret text"))
END = End(OUTCOME, Usage(10, 5, 3, 2, 1, cache_level=CacheLevel.SHARED))


def known() -> set[str]:
    """Every name of the conventions that is not deprecated."""
    found: set[str] = set()
    for module in (cloud_attributes, gen_ai_attributes, rpc_attributes, error_attributes, service_attributes):
        found |= {value for name, value in vars(module).items() if name.isupper() and isinstance(value, str)}
    deprecated = {
        rpc_attributes.RPC_SERVICE, rpc_attributes.RPC_SYSTEM, rpc_attributes.RPC_GRPC_STATUS_CODE,
        gen_ai_attributes.GEN_AI_SYSTEM, gen_ai_attributes.GEN_AI_USAGE_PROMPT_TOKENS,
        gen_ai_attributes.GEN_AI_USAGE_COMPLETION_TOKENS, gen_ai_attributes.GEN_AI_PROMPT,
        gen_ai_attributes.GEN_AI_COMPLETION,
    }  # fmt: skip
    return found - deprecated


def test_spans_and_metrics_name_the_model_alike() -> None:
    for model in ("bigcode/starcoder2-3b", "/models/coder-13b/", "./target"):
        name = Service("1.0", "one", model=model).attributes()["gen_ai.request.model"]
        assert name == model_name(model)


def test_attributes_are_those_of_the_conventions_or_our_own() -> None:
    service = Service("1.0", "one", "us-east", "/models/coder-13b/", "vllm")
    context = TraceContext("a" * 32, "b" * 16, is_sampled=True)
    trace = describe(
        RequestEnded(REQUEST, END, MARKS), context, service.attributes(), written=0.007, missed_budget=True
    )
    names = {*trace.root.attributes, *service.resource()}
    for stage in trace.stages:
        names |= set(stage.attributes)
    assert {name for name in names if not name.startswith("completion.")} <= known()
    assert trace.root.attributes["gen_ai.request.model"] == "coder-13b"
    assert trace.root.attributes["error.type"] == "UNAVAILABLE"
    values = str(trace)
    assert "secret" not in values
    assert "x.py" not in values
    assert trace.is_failed
    assert [stage.name for stage in trace.stages] == [
        "receive", "admission", "queue", "tokenise", "prefill", "decode", "stream",
    ]  # fmt: skip
