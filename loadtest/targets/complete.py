"""An editor with a `Complete` call for each request."""

from completion_client import DeadlineExceededError, ServiceError
from completion_client.calls import stream_events
from loadtest.targets import ClientSettings
from loadtest.targets.calls import CallEditor
from loadtest.targets.channels import SessionChannel
from loadtest.targets.record import Outcome, Record
from loadtest.targets.wire import RequestFactory, error_text, take_end


class CompleteEditor(CallEditor):
    """One editor; leaving a call cancels the request."""

    def __init__(self, channel: SessionChannel, factory: RequestFactory, settings: ClientSettings) -> None:
        """Send requests on a session's channel."""
        super().__init__(settings)
        self._channel = channel
        self._factory = factory

    async def ask(self, record: Record, max_tokens: int) -> None:
        """See CallEditor."""
        message = self._factory.message(record, max_tokens)
        timeout_s, metadata = self.settings.deadline_s or None, self._factory.metadata
        try:
            async for event in stream_events(self._channel.channel(), message, timeout_s=timeout_s, metadata=metadata):
                if event.HasField("delta"):
                    record.text_came(event.delta.text)
                else:
                    take_end(record, event.end)
        except DeadlineExceededError:
            record.end(Outcome.DEADLINE)
        except ServiceError as error:
            record.end(Outcome.ERROR, error_text(error))
        record.end(Outcome.ERROR, "the call ended without an End")

    def disconnect(self, host_shift: int | None) -> None:
        """See CallEditor."""
        self._channel.disconnect()
        self._channel.move(host_shift)
