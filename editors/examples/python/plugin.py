"""A plugin whose editor is a terminal: python plugin.py HOST:PORT. docs/plugin.md explains it.

Input lines: "type TEXT" (TEXT is now the document up to the cursor), "accept" and "dismiss".
"""

import asyncio
import json
import os
import random
import sys
import time
import uuid

import grpc
from google.rpc import error_details_pb2, status_pb2

from completion.v1 import completion_pb2 as pb
from completion.v1.completion_pb2_grpc import CompletionServiceStub

FIRST_BOUND_S, LAST_BOUND_S = 0.1, 5.0
CHANNEL_OPTIONS = [
    ("grpc.initial_reconnect_backoff_ms", 100),  # gRPC's own back-off grows to 2 minutes otherwise
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.keepalive_time_ms", 20_000),  # notices a connection that broke without a word
]
METADATA = [("x-user-id", "ada")]
if token := os.environ.get("COMPLETION_TOKEN"):  # send it only over TLS, or to this machine
    METADATA.append(("authorization", f"Bearer {token}"))
REFUSED_WAIT_S = 15.0  # a token that was refused is refused again: tell the user, and do not ask in a loop
WHOLE = (pb.FINISH_REASON_STOP, pb.FINISH_REASON_LENGTH)


def say(*words: object) -> None:
    print(*words, flush=True)


def details_of(error: grpc.aio.AioRpcError) -> tuple[str, float]:
    """Return the reason, "" if there is none, and the seconds to wait before a retry."""
    reason, retry_after_s = "", 0.0
    raw = dict(error.trailing_metadata() or ()).get("grpc-status-details-bin", b"")
    for detail in status_pb2.Status.FromString(raw).details:
        info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
        if detail.Unpack(info):
            reason = info.reason
        elif detail.Unpack(retry):
            retry_after_s = retry.retry_delay.ToTimedelta().total_seconds()
    return reason, retry_after_s


class Plugin:
    def __init__(self, stub: CompletionServiceStub) -> None:
        self.stub = stub
        self.call: grpc.aio.StreamStreamCall | None = None
        self.is_away = True  # from a loss until the server has accepted another stream
        self.has_write_failed = False
        self.outbox: list[pb.SessionRequest] = []  # for the next stream
        self.has_outbox = asyncio.Event()
        self.session_id, self.sequence = str(uuid.uuid4()), 0
        self.request: pb.CompleteRequest | None = None  # the newest, until its end
        self.text = ""
        self.quiet_until_s = 0.0

    async def type(self, prefix: str) -> None:
        """Ask anew, which supersedes the older request. docs/client-policy.md tells when to ask at all."""
        self.hide()
        if self.is_away:
            say("away")
            return
        if time.monotonic() < self.quiet_until_s:
            say("quiet")
            return
        self.sequence += 1
        place = {"document_uri": "file:///a.py", "language_id": "python", "prefix": prefix}
        self.request = pb.CompleteRequest(
            session_id=self.session_id, sequence=self.sequence, timeout_ms=10_000, **place
        )
        await self.send(pb.SessionRequest(complete=self.request))

    async def dismiss(self) -> None:
        if self.request is not None:
            await self.send(pb.SessionRequest(cancel=pb.Cancel(sequence=self.request.sequence)))
            self.request = None
        elif self.text:
            await self.report(pb.FEEDBACK_KIND_REJECTED)
        self.hide()

    async def accept(self) -> None:
        if self.text and self.request is None:  # the user sees a whole answer
            say("accepted", json.dumps(self.text))
            await self.report(pb.FEEDBACK_KIND_ACCEPTED, len(self.text.encode("utf-16-le")) // 2)
            self.text = ""

    async def report(self, kind: pb.FeedbackKind.ValueType, characters: int = 0) -> None:
        feedback = pb.ReportFeedbackRequest(sequence=self.sequence, kind=kind, accepted_characters=characters)
        await self.send(pb.SessionRequest(feedback=feedback))

    async def send(self, message: pb.SessionRequest) -> None:
        if self.call is None:
            self.outbox.append(message)
            self.has_outbox.set()
            return
        try:
            await self.call.write(message)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            self.has_write_failed = True

    async def stay_connected(self) -> None:
        bound_s = FIRST_BOUND_S
        while True:
            reason, retry_after_s = "", 0.0
            try:
                call = self.stub.Session(metadata=METADATA)
                await call.wait_for_connection()
                self.is_away = False
                say("connected")
                self.call, waiting, self.outbox = call, self.outbox, []
                for message in waiting:
                    await self.send(message)
                async for response in call:
                    bound_s = FIRST_BOUND_S
                    await self.receive(response)
            except grpc.aio.AioRpcError as error:
                reason, retry_after_s = details_of(error)
                if error.code() is grpc.StatusCode.UNAUTHENTICATED:
                    say("token", error.details())
                    retry_after_s = max(retry_after_s, REFUSED_WAIT_S)
            self.call = None
            # A write into a stream that is just ending hides its status in grpc.aio; a real loss shows in the next one.
            if reason == "SESSION_ENDED" or self.has_write_failed:
                self.has_write_failed = False
                say("rest")
                await self.rest()
                continue
            self.is_away = True
            self.hide()
            self.request, self.outbox = None, []  # an answer that comes after the reconnect is too late
            wait_s = retry_after_s + random.uniform(0, bound_s)
            bound_s = min(LAST_BOUND_S, 2 * bound_s)
            say("lost", reason or "-", round(1_000 * wait_s))
            await asyncio.sleep(wait_s)

    async def rest(self) -> None:
        """Return when there is something to send: at once if the server has not read the newest request."""
        self.has_outbox.clear()
        if self.request is not None:
            self.outbox.append(pb.SessionRequest(complete=self.request))
        elif not self.outbox:
            await self.has_outbox.wait()

    async def receive(self, response: pb.SessionResponse) -> None:
        number, event = response.sequence, response.WhichOneof("event")
        is_newest = self.request is not None and number == self.request.sequence
        if event == "refusal":
            say("refused", response.refusal.error.message)
        elif event == "delta" and is_newest:
            self.show(response.delta.text)
        elif event == "end":
            end = response.end
            if end.HasField("retry_after_ms"):
                self.quiet_until_s = time.monotonic() + end.retry_after_ms / 1_000
            if is_newest:
                await self.finish(end)
            if end.finish_reason == pb.FINISH_REASON_ERROR:
                say("error", end.error.message)
            say("end", number, pb.FinishReason.Name(end.finish_reason).removeprefix("FINISH_REASON_"))

    async def finish(self, end: pb.End) -> None:
        self.request = None
        if end.finish_reason not in WHOLE or not (self.text + end.text).strip():
            self.hide()
            return
        self.show(end.text)
        await self.report(pb.FEEDBACK_KIND_SHOWN)

    def show(self, text: str) -> None:
        self.text += text
        if text and self.text.strip():
            say("show", self.sequence, json.dumps(self.text))

    def hide(self) -> None:
        if self.text:
            self.text = ""
            say("hide")


async def main(address: str) -> None:
    async with grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
        plugin = Plugin(CompletionServiceStub(channel))
        connection = asyncio.create_task(plugin.stay_connected())
        while line := await asyncio.to_thread(sys.stdin.readline):
            command, _, text = line.rstrip("\n").partition(" ")
            if command == "type":
                await plugin.type(text)
            elif command == "accept":
                await plugin.accept()
            elif command == "dismiss":
                await plugin.dismiss()
        connection.cancel()


asyncio.run(main(sys.argv[1]))
