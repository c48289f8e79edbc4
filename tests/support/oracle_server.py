"""A server of the contract whose answer to a text is known: a test can tell whether what an editor shows is right."""

import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc

from completion.v1 import completion_pb2 as pb
from completion.v1.completion_pb2_grpc import CompletionServiceServicer, add_CompletionServiceServicer_to_server

LINE = "alpha(beta, [gamma]) = '😋'\n\tdelta()\n"
"""What a line becomes that begins as this does, if nothing stands behind the cursor on it."""


def answer(before: str, after: str) -> str:
    """Return the completion at a cursor: the rest of LINE, or text that no other place has."""
    line = before.rpartition("\n")[2]
    if LINE.startswith(line) and not after.partition("\n")[0]:
        return LINE[len(line) :]
    return f"<{zlib.crc32(f'{before}|{after}'.encode()):x}>"


def next_edit(request: pb.CompleteRequest) -> pb.Edit | None:
    """Return an edit that makes the line after the cursor's upper case, if that changes it."""
    _, _, below = request.suffix.partition("\n")
    line = below.partition("\n")[0]
    if line == line.upper():
        return None
    version = request.next_edit.document_version
    return pb.Edit(document_version=version, first_line=1, line_count=1, text=f"{line.upper()}\n")


class OracleServer(CompletionServiceServicer):
    """Answers on sessions and remembers the newest request and the feedback."""

    def __init__(self) -> None:
        self.num_requests = 0
        self.newest = pb.CompleteRequest()
        self.feedback: list[pb.ReportFeedbackRequest] = []
        self.edit_requests: list[pb.CompleteRequest] = []

    async def Complete(
        self, request: pb.CompleteRequest, _context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.CompleteResponse]:
        """Answer a call."""
        text = answer(request.prefix, request.suffix)
        yield pb.CompleteResponse(end=pb.End(finish_reason=pb.FINISH_REASON_STOP, text=text))

    async def Session(
        self, request_iterator: AsyncIterator[pb.SessionRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.SessionResponse]:
        """Answer each request at once, in two parts."""
        await context.send_initial_metadata(())
        async for message in request_iterator:
            if message.HasField("feedback"):
                self.feedback.append(message.feedback)
            if not message.HasField("complete"):
                continue
            self.newest = message.complete
            self.num_requests += 1
            if self.newest.mode == pb.MODE_NEXT_EDIT:
                yield pb.SessionResponse(sequence=self.newest.sequence, end=self._edit_end(self.newest))
                continue
            text, number = answer(self.newest.prefix, self.newest.suffix), self.newest.sequence
            yield pb.SessionResponse(sequence=number, delta=pb.Delta(text=text[:3]))
            yield pb.SessionResponse(sequence=number, end=pb.End(finish_reason=pb.FINISH_REASON_STOP, text=text[3:]))

    def _edit_end(self, request: pb.CompleteRequest) -> pb.End:
        self.edit_requests.append(request)
        return pb.End(finish_reason=pb.FINISH_REASON_STOP, edit=next_edit(request))


@asynccontextmanager
async def run_oracle(credentials: grpc.ServerCredentials | None = None) -> AsyncIterator[tuple[OracleServer, str]]:
    """Run a server, encrypted if it has credentials; yield it and its address."""
    oracle, server = OracleServer(), grpc.aio.server()
    add_CompletionServiceServicer_to_server(oracle, server)
    local = "127.0.0.1:0"
    port = server.add_secure_port(local, credentials) if credentials else server.add_insecure_port(local)
    await server.start()
    try:
        yield oracle, f"127.0.0.1:{port}"
    finally:
        await server.stop(None)
