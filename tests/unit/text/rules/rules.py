"""Runs the text rules over a text, whole or in pieces."""

from completion_server.core.request import Caller, Mode, Request
from completion_server.text.rules.text import TextRules

CURSOR = "‸"


def request_at(
    document: str, *, mode: Mode = Mode.SINGLE_LINE, stop: tuple[str, ...] = (), language_id: str = "python"
) -> Request:
    """Return a request for a document with its cursor marked."""
    prefix, _, suffix = document.partition(CURSOR)
    return Request(
        id="r1",
        caller=Caller("ada", "s1"),
        sequence=1,
        document_uri="file:///a",
        language_id=language_id,
        prefix=prefix,
        suffix=suffix,
        max_tokens=64,
        received_at=0.0,
        mode=mode,
        stop=stop,
    )


def sent(request: Request, pieces: list[str], *, is_cut: bool = False) -> list[str]:
    """Return the text sent for each piece and for the finish; shorter if a rule ended the completion."""
    rules = TextRules(request)
    deltas = []
    for piece in pieces:
        deltas.append(rules.feed(piece))
        if rules.is_done:
            return deltas
    deltas.append(rules.finish(is_cut=is_cut))
    return deltas


def complete(request: Request, text: str, *, is_cut: bool = False) -> str:
    """Return the whole text that is sent, which must not depend on the pieces."""
    whole = "".join(sent(request, [text], is_cut=is_cut))
    for size in (1, 2, 3, 7):
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        assert "".join(sent(request, pieces, is_cut=is_cut)) == whole
    return whole
