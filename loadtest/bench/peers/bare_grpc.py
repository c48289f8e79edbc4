"""A gRPC server without logic: answers each request of a session, and each `Complete` call, with constant messages.

It is the lower bound for the cost of a gRPC server in Python.
"""

import asyncio
import json
from typing import Any

import click
import grpc

from completion.v1 import completion_pb2 as pb

_SERVICE = pb.DESCRIPTOR.services_by_name["CompletionService"].full_name
_MAX_PENDING = 20_000


class Bare:
    """Answers each request at once."""

    def __init__(self, deltas_a_request: float) -> None:
        """Send `deltas_a_request` deltas before each end, on average."""
        self._deltas_a_request = deltas_a_request
        self._due = 0.0
        self._delta = pb.Delta(text="result = load(")
        self._end = pb.End(
            finish_reason=pb.FINISH_REASON_STOP,
            usage=pb.Usage(
                prompt_tokens=600,
                cached_prompt_tokens=560,
                completion_tokens=21,
                drafted_tokens=25,
                accepted_draft_tokens=16,
            ),
            timings=pb.Timings(queue_ms=1.5, tokenise_ms=0.25, prefill_ms=48.5, decode_ms=41.5, total_ms=92.25),
            text="names)\n    value = max(node)",
        )

    async def session(self, _messages: Any, context: Any) -> None:  # noqa: ANN401 - gRPC has no types for them
        """Answer each request, and ignore all other messages."""
        while (message := await context.read()) is not grpc.aio.EOF:
            if not message.HasField("complete"):
                continue
            sequence = message.complete.sequence
            self._due += self._deltas_a_request
            while self._due >= 1:
                self._due -= 1
                await context.write(pb.SessionResponse(sequence=sequence, delta=self._delta))
            await context.write(pb.SessionResponse(sequence=sequence, end=self._end))

    async def complete(self, _request: Any, context: Any) -> None:  # noqa: ANN401 - gRPC has no types for them
        """Answer a call with an end that has the text."""
        await context.write(pb.CompleteResponse(end=self._end))


@click.command()
@click.option("--deltas", type=click.FloatRange(0), default=1.0, show_default=True, help="Deltas before each end.")
def main(deltas: float) -> None:
    """Serve on a free port of the loopback interface until killed; the first line of output is its address, as JSON."""
    asyncio.run(_serve(deltas))


async def _serve(deltas: float) -> None:
    server = grpc.aio.server(
        options=[
            ("grpc.server.max_pending_requests", _MAX_PENDING),
            ("grpc.server.max_pending_requests_hard_limit", _MAX_PENDING),
        ]
    )
    bare = Bare(deltas)
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Session": grpc.stream_stream_rpc_method_handler(
            bare.session, pb.SessionRequest.FromString, pb.SessionResponse.SerializeToString
        ),
        "Complete": grpc.unary_stream_rpc_method_handler(
            bare.complete, pb.CompleteRequest.FromString, pb.CompleteResponse.SerializeToString
        ),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    click.echo(json.dumps({"address": f"127.0.0.1:{port}"}))
    await server.wait_for_termination()


if __name__ == "__main__":
    main()
