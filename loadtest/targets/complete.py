"""An editor with a `Complete` call for each request."""

import grpc

from completion.v1.completion_pb2_grpc import CompletionServiceStub
from loadtest.targets import ClientSettings
from loadtest.targets.calls import CallEditor
from loadtest.targets.channels import SessionChannel
from loadtest.targets.record import Outcome, Record
from loadtest.targets.wire import RequestFactory, take_end


class CompleteEditor(CallEditor):
    """One editor; leaving a call cancels the work."""

    def __init__(self, channel: SessionChannel, factory: RequestFactory, settings: ClientSettings) -> None:
        """Ask on a channel."""
        super().__init__(settings)
        self._channel = channel
        self._factory = factory

    async def ask(self, record: Record, max_tokens: int) -> None:
        """See CallEditor."""
        stub = CompletionServiceStub(self._channel.channel())
        timeout_s = self.settings.deadline_s or None
        call = stub.Complete(
            self._factory.message(record, max_tokens), timeout=timeout_s, metadata=self._factory.metadata
        )
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
        self._channel.hang_up(host_shift)
