"""Sends requests with a different canary in every text, name and token, through every path of a server."""

import asyncio
import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import grpc

from completion.v1 import completion_pb2 as pb
from completion.v1.completion_pb2_grpc import CompletionServiceStub
from tests.support.faulty_server import PARTS
from tests.support.http_clients import connection_to, http_session
from tests.support.next_edits import diff_of
from tests.support.server import ask, eventually

CANARY = re.compile(rb"canary\d{6}")
WITHIN_S = 20.0
BAD_FIELDS: tuple[dict[str, Any], ...] = (
    {"trigger": 99}, {"mode": 99}, {"max_tokens": -1}, {"temperature": float("nan")}, {"suffix": "canary000000" * 200},
    {"document_uri": "http://[canary000000]/"}, {"document_uri": "vscode-remote://ssh-remote+[canary000000]/a.py"},
    {"session_id": "canary000000" * 20}, {"stop": [""]}, {"seed": 2**64 - 1},
    {"snippets": [pb.ContextSnippet(uri="http://[canary000000]/", text="canary000000\n" * 5, score=float("nan"))]},
    {"mode": pb.MODE_NEXT_EDIT, "next_edit": pb.NextEdit(recent_edits=[pb.RecentEdit(diff="canary000000")])},
)  # fmt: skip
UNARY = [{"part": part} for part in PARTS if part != "feedback"] + [{"part": "background"}, {}, *BAD_FIELDS]
SERVICE = "/completion.v1.CompletionService/"


class Canaries:
    """Makes canaries, and requests that are full of them."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self.num_made = 0

    def new(self) -> str:
        self.num_made += 1
        return f"canary{next(self._numbers):06d}"

    def prefix(self, part: str = "") -> str:
        return f"fault={part};\n{self.new()} = "

    def request(self, *, part: str = "", **fields: Any) -> pb.CompleteRequest:
        """Return a request that fails in a part of the server, if one is given."""
        snippets = [pb.ContextSnippet(uri=f"file:///{self.new()}.py", text=f"{self.new()}\n" * 4, score=1)]
        made = {
            "session_id": self.new(), "sequence": 1, "document_uri": f"file:///{self.new()}/a.py",
            "language_id": self.new(), "prefix": self.prefix(part), "suffix": f"\n{self.new()}\n",
            "snippets": snippets, "stop": [self.new()], "max_tokens": 4,
        }  # fmt: skip
        return pb.CompleteRequest(**made | fields)

    def edit_request(self, **fields: Any) -> pb.CompleteRequest:
        """Return a request for the next edit."""
        diff = diff_of(f"{self.new()}\n", f"{self.new()}\n")
        recent = pb.RecentEdit(document_uri=f"file:///{self.new()}.py", diff=diff)
        made = {"mode": pb.MODE_NEXT_EDIT, "next_edit": pb.NextEdit(recent_edits=[recent]), "stop": [], "max_tokens": 0}
        return self.request(**made | fields)

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Return names and tokens, as gRPC's metadata or as HTTP's headers."""
        names = (("x-user-id", self.new()), ("x-tenant-id", self.new()))
        return (*names, ("authorization", f"Bearer {self.new()}"), ("x-api-key", self.new()))


@dataclass
class Sender:
    """Sends canaries to a server with the faults of `faulty_server`."""

    canaries: Canaries
    ready: dict[str, Any]
    """The server's ready line."""
    channel: grpc.aio.Channel

    @property
    def stub(self) -> Any:
        return CompletionServiceStub(self.channel)

    async def send_round(self) -> None:
        """Send calls of every kind, good and bad ones, and kill the engine."""
        await self.send_unary()
        await asyncio.gather(*(self.send_session(last) for last in ({}, {"part": "convert"}, {"part": "decoder"})))
        await self.send_bytes()
        for headers in ("upgrade", ""):
            await self.send_raw(headers)
        for path, body, is_good in self.http_calls():
            await self.post(path, body, is_good=is_good)
        await self.crash_engine()

    async def send_unary(self) -> None:
        """Send calls with one request, good and bad, and feedback on them."""
        new = self.canaries
        calls = [ask(self.stub, new.request(**fields), metadata=new.metadata()) for fields in UNARY]
        calls.append(ask(self.stub, new.edit_request(), metadata=new.metadata()))
        feedback = [pb.ReportFeedbackRequest(session_id=f"{fault}{new.new()}") for fault in ("fault=feedback;", "")]
        await asyncio.gather(*calls, *(self.report(message) for message in feedback))
        good, names = new.request(), new.metadata()
        assert (await ask(self.stub, good, metadata=names)).end is not None
        accepted = pb.ReportFeedbackRequest(
            session_id=good.session_id, sequence=1, kind=pb.FEEDBACK_KIND_ACCEPTED, accepted_characters=1
        )
        await self.report(accepted, names)

    async def report(self, message: pb.ReportFeedbackRequest, names: tuple[tuple[str, str], ...] = ()) -> None:
        try:
            await self.stub.ReportFeedback(message, timeout=WITHIN_S, metadata=names)
        except grpc.aio.AioRpcError:
            return

    async def send_session(self, last: dict[str, Any]) -> None:
        """Hold a session: one message after the other, each after the answer to the one before."""
        call = self.stub.Session(metadata=self.canaries.metadata())
        try:
            for message in self.session_messages(last):
                await call.write(message)
                while (answer := await asyncio.wait_for(call.read(), WITHIN_S)) is not grpc.aio.EOF:
                    if answer.WhichOneof("event") in ("end", "refusal"):
                        break
            await call.done_writing()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return
        finally:
            call.cancel()

    def session_messages(self, last: dict[str, Any]) -> Iterator[pb.SessionRequest]:
        """Yield requests that end one by one, a refused report, and a request that may end the stream."""
        new, session_id = self.canaries, self.canaries.new()
        kinds = [{"part": part} for part in ("prompt", "engine", "rules", "background")]
        for sequence, fields in enumerate([*kinds, *BAD_FIELDS, {}], 1):
            asked = new.request(**{"session_id": session_id, "sequence": sequence} | fields)
            yield pb.SessionRequest(complete=asked)
        yield pb.SessionRequest(complete=new.edit_request(session_id=session_id, sequence=100))
        yield pb.SessionRequest(feedback=pb.ReportFeedbackRequest(session_id=new.new(), sequence=99))
        yield pb.SessionRequest(complete=new.request(**{"session_id": session_id, "sequence": 101} | last))

    async def send_bytes(self) -> None:
        """Send messages that are no protobuf or no UTF-8, and call a method that there is not."""
        new = self.canaries.new
        for data in (b"\x2a\x0e" + new().encode() + b"\xff\xfe", new().encode()):
            unary = self.channel.unary_stream(f"{SERVICE}Complete")(data, timeout=WITHIN_S)
            assert await unary.code() is grpc.StatusCode.INVALID_ARGUMENT
            stream = self.channel.stream_stream(f"{SERVICE}Session")(timeout=WITHIN_S)
            try:
                await stream.write(data)
                await stream.read()
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                continue
            finally:
                stream.cancel()
        unknown = self.channel.unary_unary(f"{SERVICE}{new()}")(new().encode(), timeout=WITHIN_S)
        assert await unknown.code() is grpc.StatusCode.UNIMPLEMENTED

    async def send_raw(self, upgrade: str) -> None:
        """Write to each port what its protocol does not have."""
        new = self.canaries.new
        lines = (f"GET /{new()}?{new()} HTTP/1.0", f"x-user-id: {new()}", f"authorization: Bearer {new()}")
        for name in ("address", "http_address", "metrics_address"):
            head = "\r\n".join((*lines, *([f"connection: {upgrade}", f"upgrade: {new()}"] if upgrade else []), "", ""))
            for data in (head.encode(), f"{new()} / HTTP/9.9\r\n\r\n".encode()):
                async with connection_to(self.ready[name]) as connection:
                    await connection.send(data)
                    connection.writer.write_eof()
                    await connection.rest(WITHIN_S)

    def http_calls(self) -> Iterator[tuple[str, Any, bool]]:
        """Yield paths and bodies of every dialect, and whether they are good."""
        new, prefix = self.canaries.new, self.canaries.prefix
        openai = {"prompt": prefix(), "suffix": new(), "user": new(), "stop": [new()], "model": new(), "max_tokens": 4}
        yield "/v1/completions", openai, True
        yield "/v1/completions", openai | {"prompt": prefix(), "stream": True}, True
        snippet = {"filepath": f"{new()}.py", "body": f"{new()}\n" * 3, "score": 1}
        segments = {"prefix": prefix(), "suffix": new(), "filepath": new(), "clipboard": new()}
        segments["declarations"] = [snippet]  # type: ignore[assignment]
        yield "/v1/completions", {"language": new(), "segments": segments, "user": new()}, True
        yield "/v1/fim/completions", {"prompt": prefix(), "suffix": new(), "max_tokens": 4}, True
        extra = [{"filename": new(), "text": new()}]
        infill = {"input_prefix": prefix(), "prompt": new(), "input_suffix": new(), "input_extra": extra}
        yield "/infill", infill | {"n_predict": 4}, True
        fim = f"<|fim_prefix|>{prefix()}<|fim_suffix|>{new()}<|fim_middle|>"
        yield "/completion", {"prompt": fim, "n_predict": 4}, True
        timed = {"stream": True, "stream_options": {"include_usage": True, "include_timings": True}}
        yield "/v1/completions", {"prompt": prefix(), "suffix": new(), "max_tokens": 4, **timed}, True
        yield "/admin/speculation", {"k": new()}, False
        yield "/v1/events", {"type": new(), "completion_id": new()}, False
        yield "/v1/completions", {"prompt": [new(), new()]}, False
        yield "/v1/completions", {"prompt": new(), "max_tokens": new()}, False
        yield "/infill", {"prompt": new(), "input_suffix": new() * 200}, False
        yield "/completion", f'{{"prompt": "{new()}'.encode(), False
        yield f"/{new()}?{new()}={new()}", {"prompt": new()}, False
        for part in ("prompt", "engine", "rules", "mailbox", "observer", "background"):
            yield "/infill", {"prompt": prefix(part), "n_predict": 4}, False

    async def post(self, path: str, body: Any, *, is_good: bool) -> None:
        """Post a body with names and tokens in its headers."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        url, headers = f"http://{self.ready['http_address']}{path}", dict(self.canaries.metadata())
        async with http_session() as session, session.post(url, data=data, headers=headers) as answer:
            text = await answer.text()
            assert not is_good or answer.status == 200, (path, text)

    async def crash_engine(self) -> None:
        """Kill the engine, with a request's text in its last words, and wait for the one that replaces it."""
        await ask(self.stub, self.canaries.request(part="crash"), metadata=self.canaries.metadata())

        async def is_back() -> bool:
            answer = await ask(self.stub, self.canaries.request(), metadata=self.canaries.metadata())
            return answer.end is not None and answer.reason in ("stop", "length")

        await eventually(is_back, WITHIN_S)
