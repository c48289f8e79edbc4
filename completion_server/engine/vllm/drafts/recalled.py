"""n-gram drafts from the last answers to the same user, and from the prompt. Lives in vLLM's worker.

A user who goes on otherwise than an answer did is soon answered with parts of it again, and vLLM's own lookup knows the
prompt alone. Drafts change no text, and nobody's hold tokens of another author, who is one user of one tenant.
"""

from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from completion_server.engine.vllm import AUTHOR

_LONGEST_RUN = 4
_ANSWERS = 4
_AUTHORS = 4096
"""Authors whose answers are kept: four answers of 64 tokens are 1 KiB."""
_TOKEN = np.dtype(np.int32)


def what_followed(answers: Sequence[bytes], text: bytes, most: int) -> list[int]:
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


def _last_place(text: bytes, run: bytes) -> int:
    """Return the offset of the last place of a run of tokens that another token follows; -1 if there is none."""
    at = text.rfind(run, 0, -_TOKEN.itemsize)
    while at > 0 and at % _TOKEN.itemsize:  # it began within a token
        at = text.rfind(run, 0, at + len(run) - 1)
    return at


class RecalledDrafts:
    """The drafts of one worker."""

    def __init__(self) -> None:
        self._answers: OrderedDict[str, deque[bytes]] = OrderedDict()
        """By author, the newest first; the author of the last answer at the end."""
        self._running: dict[str, Any] = {}

    def propose(self, runner: Any, sampled: Sequence[Sequence[int]], most: int) -> list[list[int]]:
        """Return the drafts of each request in the batch of vLLM's model runner, which has sampled these tokens."""
        self._keep_ended(runner.requests)
        batch = runner.input_batch
        drafts: list[list[int]] = []
        for index, new in enumerate(sampled):
            num_tokens = int(batch.num_tokens_no_spec[index])
            room = min(most, runner.max_model_len - num_tokens)
            if not new or room <= 0:
                drafts.append([])
                continue
            request_id = batch.req_ids[index]
            request = self._running[request_id] = runner.requests[request_id]
            text = batch.token_ids_cpu[index, :num_tokens].tobytes()
            drafts.append(what_followed(self._answers.get(_author_of(request), ()), text, room))
        return drafts

    def _keep_ended(self, requests: Mapping[str, Any]) -> None:
        """Keep the answers of requests that are no longer among vLLM's."""
        for request_id in self._running.keys() - requests.keys():
            request = self._running.pop(request_id)
            if (author := _author_of(request)) and request.output_token_ids:
                answers = self._answers.setdefault(author, deque(maxlen=_ANSWERS))
                answers.appendleft(np.asarray(request.output_token_ids, _TOKEN).tobytes())
                self._answers.move_to_end(author)
                if len(self._answers) > _AUTHORS:
                    self._answers.popitem(last=False)


def _author_of(request: Any) -> str:
    extra = request.sampling_params.extra_args if request.sampling_params is not None else None
    return str((extra or {}).get(AUTHOR, ""))
