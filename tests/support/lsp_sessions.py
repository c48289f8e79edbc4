"""A session that is not real, and an editor with one document, for tests of the language server in virtual time."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from lsprotocol import types
from pygls.workspace import TextDocument

from completion.v1 import completion_pb2 as pb
from completion_client import Completion, ServiceError
from completion_lsp.documents import Document, Edit

ANSWERS_AFTER_S = 0.2

Answer = Callable[[pb.CompleteRequest], pb.End]


class Pending:
    """The answer of `Session` to a request, as completion_client's PendingCompletion."""

    def __init__(self, sequence: int, end: pb.End, error: ServiceError | None) -> None:
        self.sequence = sequence
        self.is_cancelled = False
        self.error = error
        self._end = end

    async def __aiter__(self) -> AsyncIterator[str]:
        await asyncio.sleep(ANSWERS_AFTER_S)
        if not self.is_cancelled:
            yield self._end.text

    async def result(self) -> Completion:
        if self.error is not None:
            raise self.error
        end = pb.End(finish_reason=pb.FINISH_REASON_CANCELLED) if self.is_cancelled else self._end
        return Completion(end.text, end, None, (), 0.0)

    def cancel_nowait(self) -> None:
        self.is_cancelled = True


class Session:
    """Takes requests and feedback."""

    def __init__(self, answer: Answer) -> None:
        self.requests: list[pb.CompleteRequest] = []
        self.pending: list[Pending] = []
        self.timeouts_s: list[float] = []
        self.feedback: list[pb.ReportFeedbackRequest] = []
        self.error: ServiceError | None = None
        """Fails the next requests."""
        self._answer = answer

    def submit_nowait(self, request: pb.CompleteRequest, *, timeout_s: float) -> Pending:
        self.requests.append(request)
        self.timeouts_s.append(timeout_s)
        self.pending.append(Pending(len(self.requests), self._answer(request), self.error))
        return self.pending[-1]

    def report_nowait(self, feedback: pb.ReportFeedbackRequest) -> None:
        self.feedback.append(feedback)

    @property
    def kinds(self) -> list[tuple[str, int]]:
        names = (pb.FeedbackKind.Name(each.kind).removeprefix("FEEDBACK_KIND_") for each in self.feedback)
        return list(zip(names, (each.accepted_characters for each in self.feedback), strict=True))


class EditorUser:
    """An editor with one document; `changed` hears its edits."""

    def __init__(self, answer: Answer, text: str) -> None:
        self.session = Session(answer)
        self.document = document_of("a.py", text)

    def changed(self, edits: Sequence[Edit]) -> None:
        raise NotImplementedError

    def edit(self, start: int, end: int, text: str) -> None:
        positions = self.document.positions
        place = types.Range(positions.position_at(start), positions.position_at(end))
        self.document.version = (self.document.version or 0) + 1
        self.document.apply_change(types.TextDocumentContentChangePartial(range=place, text=text))
        self.changed(self.document.take_edits())

    def type(self, text: str) -> None:
        end = len(self.document.source)
        self.edit(end, end, text)


def document_of(name: str, text: str, language_id: str = "python") -> Document:
    return Document(TextDocument(f"file:///project/{name}", text, 1, language_id))


def replace_all(document: Document, text: str) -> list[Edit]:
    """Replace the text of a document; return the edits."""
    document.apply_change(types.TextDocumentContentChangeWholeDocument(text=text))
    return document.take_edits()
