"""A gRPC server without logic: answers each request of a session, and each `Complete` call, with constant messages.

It is the lower bound for the cost of a gRPC server in Python.
"""

import asyncio
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from completion.v1 import completion_pb2 as pb
from loadtest.processes.child import Child

_SERVICE = pb.DESCRIPTOR.services_by_name["CompletionService"].full_name
_MAX_PENDING = 20_000
_START_S = 60.0
_DELTA = pb.Delta(text="result = load(")
_END = pb.End(
    finish_reason=pb.FINISH_REASON_STOP,
    usage=pb.Usage(
        prompt_tokens=600, cached_prompt_tokens=560, completion_tokens=21, drafted_tokens=25, accepted_draft_tokens=16
    ),
    timings=pb.Timings(queue_ms=1.5, tokenise_ms=0.25, prefill_ms=48.5, decode_ms=41.5, total_ms=92.25),
    text="names)\n    value = max(node)",
)


@contextmanager
def bare_server(deltas: float) -> Iterator[tuple[str, int]]:
    """Run the server, which sends `deltas` deltas before each end on average; yield its address and process id.

    Raises StartError if it did not start.
    """
    with Child("bare", (sys.executable, "-m", __name__, str(deltas)), is_piped=True) as child:
        yield child.read_json(_START_S)["address"], child.pid


async def _serve(deltas: float) -> None:
    """Serve on a free port of the loopback interface until killed; the first line of output is its address, as JSON."""
    due = 0.0

    async def session(_messages: Any, context: Any) -> None:  # noqa: ANN401 - gRPC has no types for them
        nonlocal due
        while (message := await context.read()) is not grpc.aio.EOF:
            if not message.HasField("complete"):
                continue
            sequence = message.complete.sequence
            due += deltas
            while due >= 1:
                due -= 1
                await context.write(pb.SessionResponse(sequence=sequence, delta=_DELTA))
            await context.write(pb.SessionResponse(sequence=sequence, end=_END))

    async def complete(_request: Any, context: Any) -> None:  # noqa: ANN401 - gRPC has no types for them
        await context.write(pb.CompleteResponse(end=_END))

    pending = ("grpc.server.max_pending_requests", "grpc.server.max_pending_requests_hard_limit")
    server = grpc.aio.server(options=[(name, _MAX_PENDING) for name in pending])
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Session": grpc.stream_stream_rpc_method_handler(
            session, pb.SessionRequest.FromString, pb.SessionResponse.SerializeToString
        ),
        "Complete": grpc.unary_stream_rpc_method_handler(
            complete, pb.CompleteRequest.FromString, pb.CompleteResponse.SerializeToString
        ),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    sys.stdout.write(json.dumps({"address": f"127.0.0.1:{port}"}) + "\n")
    sys.stdout.flush()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(_serve(float(sys.argv[1])))
