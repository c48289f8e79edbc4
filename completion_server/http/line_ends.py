r"""Serves documents whose lines end with "\r\n" like those whose lines end with "\n". Pure.

Models have seen few "\r\n", and requests that differ in nothing else have one answer.
"""

from dataclasses import dataclass, replace

from completion_server.http.dialect import Answer, Asked, Json, Reply

_CRLF, _LF = "\r\n", "\n"


def with_unix_lines(asked: Asked, reply: Reply) -> tuple[Asked, Reply]:
    """Return a request whose lines end with "\\n", and a reply with the line ends of most lines of the document."""
    texts = asked.prefix, asked.suffix
    num_lines = sum(text.count(_LF) for text in texts)
    if 2 * sum(text.count(_CRLF) for text in texts) > num_lines:
        reply = _CrlfReply(reply)
    return (
        replace(
            asked,
            prefix=_unix(asked.prefix),
            suffix=_unix_beginning(asked.suffix),
            snippets=tuple(replace(each, text=_unix_beginning(each.text)) for each in asked.snippets),
            stop=tuple(map(_unix, asked.stop)),
        ),
        reply,
    )


def _unix(text: str) -> str:
    return text.replace(_CRLF, _LF)


def _unix_beginning(text: str) -> str:
    """Return a text that the client may have cut in the middle of a line end."""
    return _unix(text).removesuffix("\r")


@dataclass(frozen=True, slots=True)
class _CrlfReply:
    """Writes an answer for a document with "\\r\\n"."""

    reply: Reply

    @property
    def is_streamed(self) -> bool:
        """See `Reply`."""
        return self.reply.is_streamed

    def whole(self, answer: Answer) -> Json:
        """See `Reply`."""
        return self.reply.whole(_converted(answer))

    def piece(self, answer: Answer) -> Json:
        """See `Reply`."""
        return self.reply.piece(_converted(answer))

    def last(self, answer: Answer) -> list[Json]:
        """See `Reply`."""
        return self.reply.last(_converted(answer))


def _converted(answer: Answer) -> Answer:
    return replace(answer, text=_unix(answer.text).replace(_LF, _CRLF))
