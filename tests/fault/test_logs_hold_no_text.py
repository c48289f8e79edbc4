"""The server's output holds no client text for any failure while a request is served."""

import asyncio
import itertools
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc

from completion.v1 import completion_pb2 as pb
from completion.v1.completion_pb2_grpc import CompletionServiceStub
from tests.support.faulty_server import PARTS
from tests.support.models import TARGET
from tests.support.server import ask
from tests.support.server_process import flags, serving

NUM_CANARIES = 10_000
CANARY = re.compile(rb"canary\d{6}")
SETTINGS = (
    "engine.kind=scripted", "engine.scripted_times=instant", f"engine.model={TARGET}", "server.listen=127.0.0.1:0",
    "server.admin_listen=", "server.metrics_listen=127.0.0.1:0", "log.level=debug", "log.format=json",
    "admission.user_requests_per_s=0", "admission.user_tokens_per_s=0", "admission.users_per_peer=0",
    "admission.refused_bytes_per_s=0", "shed.when=never", "shed.lag_ms=0", "limits.max_suffix_bytes=2000",
)  # fmt: skip
BAD_FIELDS: tuple[dict[str, Any], ...] = (
    {"trigger": 99}, {"mode": 99}, {"max_tokens": -1}, {"temperature": float("nan")}, {"suffix": "canary000000" * 200},
    {"document_uri": "http://[canary000000]/"}, {"document_uri": "vscode-remote://ssh-remote+[canary000000]/a.py"},
    {"session_id": "canary000000" * 20}, {"stop": [""]}, {"seed": 2**64 - 1},
    {"snippets": [pb.ContextSnippet(uri="http://[canary000000]/", text="canary000000\n" * 5, score=float("nan"))]},
)  # fmt: skip
UNARY = [{"part": part} for part in PARTS if part != "feedback"] + [{"part": "background"}, {}, *BAD_FIELDS]


class Canaries:
    """Makes requests with a different canary in every text field."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self.num_made = 0

    def new(self) -> str:
        self.num_made += 1
        return f"canary{next(self._numbers):06d}"

    def request(self, *, part: str = "", **fields: Any) -> pb.CompleteRequest:
        snippets = [pb.ContextSnippet(uri=f"file:///{self.new()}.py", text=f"{self.new()}\n" * 4, score=1)]
        made = {
            "session_id": self.new(), "sequence": 1, "document_uri": f"file:///{self.new()}/a.py",
            "language_id": self.new(), "prefix": f"fault={part};\n{self.new()} = ", "suffix": f"\n{self.new()}\n",
            "snippets": snippets, "stop": [self.new()], "max_tokens": 4,
        }  # fmt: skip
        return pb.CompleteRequest(**made | fields)

    def metadata(self) -> tuple[tuple[str, str], ...]:
        return (("x-user-id", self.new()), ("x-tenant-id", self.new()))


async def send_unary(stub: CompletionServiceStub, channel: grpc.aio.Channel, canaries: Canaries) -> None:
    """Send a call of each kind, good or bad, and one with bytes that are not UTF-8."""
    calls = [ask(stub, canaries.request(**fields), metadata=canaries.metadata()) for fields in UNARY]
    feedback = [pb.ReportFeedbackRequest(session_id=f"{fault}{canaries.new()}") for fault in ("fault=feedback;", "")]
    reports = [report(stub, message) for message in feedback]
    prefix_not_utf8 = b"\x2a\x0e" + canaries.new().encode() + b"\xff\xfe"
    await asyncio.gather(*calls, *reports, send_bytes(channel, prefix_not_utf8))


async def report(stub: CompletionServiceStub, message: pb.ReportFeedbackRequest) -> None:
    try:
        await stub.ReportFeedback(message, timeout=20)
    except grpc.aio.AioRpcError:
        return


async def send_bytes(channel: grpc.aio.Channel, data: bytes) -> None:
    call = channel.unary_stream("/completion.v1.CompletionService/Complete")(data, timeout=20)
    assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT


def session_messages(canaries: Canaries, last: dict[str, Any]) -> Iterator[pb.SessionRequest]:
    """Yield requests that end one by one, and last one that may end the stream."""
    session_id = canaries.new()
    kinds = [{"part": part} for part in ("prompt", "engine", "rules", "background")]
    for sequence, fields in enumerate([*kinds, *BAD_FIELDS, last], 1):
        complete = canaries.request(**{"session_id": session_id, "sequence": sequence} | fields)
        yield pb.SessionRequest(complete=complete)


async def send_session(stub: CompletionServiceStub, canaries: Canaries, last: dict[str, Any]) -> None:
    """Hold a session: one request after the other, each after the end of the one before."""
    call = stub.Session(metadata=canaries.metadata())
    try:
        for message in session_messages(canaries, last):
            await call.write(message)
            while (answer := await asyncio.wait_for(call.read(), 20)) is not grpc.aio.EOF:
                if answer.WhichOneof("event") == "end":
                    break
        await call.done_writing()
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        return
    finally:
        call.cancel()


async def send_all(address: str, canaries: Canaries) -> None:
    async with grpc.aio.insecure_channel(address) as channel:
        stub = CompletionServiceStub(channel)
        while canaries.num_made < NUM_CANARIES:
            await send_unary(stub, channel, canaries)
            await asyncio.gather(
                *(send_session(stub, canaries, last) for last in ({}, {"part": "convert"}, {"part": "decoder"}))
            )


async def test_ten_thousand_canaries_through_every_error_path_leave_none_in_the_output(tmp_path: Path) -> None:
    canaries = Canaries()
    command = (sys.executable, "-m", "tests.support.faulty_server", "--json", *flags(*SETTINGS))
    async with serving(tmp_path, command=command) as server:
        await send_all(server.ready["address"], canaries)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.stdout is not None
        rest = await asyncio.wait_for(server.process.stdout.read(), 60)
        assert await server.ended(60) == 0
    written = server.line + rest + server.log.read_bytes()
    for control in (b'"event": "ready"', b"control of this log", b"control of standard error"):
        assert control in written
    for part in PARTS:
        assert b", in fail_%s" % part.encode() in written, f"the fault in {part} was not logged"
    for function in (b"fail_task", b"fail_callback", b"Finalized.__del__"):
        assert function in written
    assert canaries.num_made >= NUM_CANARIES
    found = set(CANARY.findall(written))
    assert not found, f"{len(found)} canaries in the output, as {sorted(found)[:3]}"
