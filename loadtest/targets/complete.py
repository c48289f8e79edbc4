"""An editor with a `Complete` call for each request."""

import grpc

from completion.v1.completion_pb2_grpc import CompletionServiceStub
from loadtest.targets import Asking
from loadtest.targets.calls import CallEditor
from loadtest.targets.lines import Line
from loadtest.targets.record import Outcome, Record
from loadtest.targets.wire import Voice, take_end


class CompleteEditor(CallEditor):
    """One editor; leaving a call cancels the work."""

    def __init__(self, line: Line, voice: Voice, asking: Asking) -> None:
        """Ask on a line."""
        super().__init__(asking)
        self._line = line
        self._voice = voice

    async def ask(self, record: Record, max_tokens: int) -> None:
        """See CallEditor."""
        stub = CompletionServiceStub(self._line.channel())
        timeout_s = self.asking.deadline_s or None
        call = stub.Complete(self._voice.message(record, max_tokens), timeout=timeout_s, metadata=self._voice.metadata)
        try:
            async for response in call:
                if response.HasField("delta"):
                    record.text_came(response.delta.text)
                else:
                    take_end(record, response.end)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                record.end(Outcome.DEADLINE)
            record.end(Outcome.ERROR, f"{error.code().name}: {error.details()}")
        finally:
            call.cancel()
        record.end(Outcome.ERROR, "the call ended without an End")

    def hang_up(self, host_shift: int | None) -> None:
        """See CallEditor."""
        self._line.hang_up(host_shift)
