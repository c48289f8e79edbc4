"""n-gram drafts from the last answers to the same user, and from the prompt. Lives beside vLLM's scheduler.

A user who goes on otherwise than an answer did is soon answered with parts of it again, and vLLM's own lookup knows the
request's text alone. Drafts change no text, and nobody's hold tokens of another author, who is one user of one tenant.
"""

from collections import OrderedDict, deque
from collections.abc import Container, Iterable, Sequence

import numpy as np
from vllm.v1.request import Request

from completion_server.engine.vllm import AUTHOR

_LONGEST_RUN = 4
_ANSWERS = 4
_AUTHORS = 4096
"""Authors whose answers are kept: four answers of 64 tokens are 1 KiB."""
_TOKEN = np.dtype(np.int32)


def what_followed(answers: Iterable[bytes], text: bytes | bytearray, most: int) -> list[int]:
    """Return up to `most` tokens that followed the last tokens of `text` in an answer, or earlier in `text`.

    The longest run of last tokens counts, at the last place in the first of the answers. There are no more drafts than
    tokens in the run: a short one tells little. All texts are int32 tokens as bytes.
    """
    texts = (*answers, text)
    for num in range(min(_LONGEST_RUN, len(text) // _TOKEN.itemsize), 0, -1):
        run = text[-num * _TOKEN.itemsize :]
        for each in texts:
            if (at := _last_place(each, run)) >= 0:
                begin = at + len(run)
                count = min(num, most, (len(each) - begin) // _TOKEN.itemsize)
                return list(map(int, np.frombuffer(each, _TOKEN, count, begin)))
    return []


def _last_place(text: bytes | bytearray, run: bytes | bytearray) -> int:
    """Return the offset of the last place of a run of tokens that another token follows; -1 if there is none."""
    at = text.rfind(run, 0, -_TOKEN.itemsize)
    while at > 0 and at % _TOKEN.itemsize:  # it began within a token
        at = text.rfind(run, 0, at + len(run) - 1)
    return at


class RecalledDrafts:
    """The drafts of one scheduler."""

    def __init__(self) -> None:
        self._answers: OrderedDict[str, deque[bytes]] = OrderedDict()
        """By author, the newest first; the author of the last answer at the end."""
        self._running: dict[str, tuple[Request, bytearray]] = {}
        """By id, with the tokens of the prompt and of the answer so far."""

    def after(self, request: Request, most: int, said: Sequence[int] = ()) -> list[int]:
        """Return up to `most` drafts behind the tokens of a request, and those that are `said` behind them."""
        if most <= 0:
            return []
        _, text = self._running.setdefault(request.request_id, (request, bytearray()))
        text += _packed(request.all_token_ids[len(text) // _TOKEN.itemsize :])
        answers = self._answers.get(_author_of(request), ())
        return what_followed(answers, text + _packed(said) if said else text, most)

    def keep_ended(self, requests: Container[str]) -> None:
        """Keep the answers of requests that are no longer among these."""
        for request_id in [each for each in self._running if each not in requests]:
            request, _ = self._running.pop(request_id)
            if (author := _author_of(request)) and request.num_output_tokens:
                answers = self._answers.setdefault(author, deque(maxlen=_ANSWERS))
                answers.appendleft(_packed(request.output_token_ids))
                self._answers.move_to_end(author)
                if len(self._answers) > _AUTHORS:
                    self._answers.popitem(last=False)


def _packed(tokens: Sequence[int]) -> bytes:
    return np.array(tokens, _TOKEN).tobytes()


def _author_of(request: Request) -> str:
    extra = request.sampling_params.extra_args if request.sampling_params is not None else None
    return str((extra or {}).get(AUTHOR, ""))
