"""Token healing in vLLM: the last characters of a prompt are left out, and the model has to write them again.

A prompt that ends within a word ends with a token that the model has rarely seen there. So the last word is left out of
the prompt (`left_out`), and the first tokens may only be those whose text goes on with it. The engine's process loads
`Healing` by its name.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.tokenizers import get_tokenizer
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

LEFT_OUT = "left_out"
"""The name of the text in a request's `extra_args`."""


def left_out(typed: str, tokenizer: Any) -> str:  # noqa: ANN401 - transformers is untyped
    """Return the end of a line that is left out of the prompt: its last word, as the tokenizer splits text into words.

    It is the last token where the tokenizer splits no words, and "" if it has characters of several tokens' bytes.
    """
    splitter = tokenizer.backend_tokenizer.pre_tokenizer
    words = splitter.pre_tokenize_str(typed) if splitter else []
    spans = [span for _, span in words] if words else tokenizer(typed, return_offsets_mapping=True)["offset_mapping"]
    found = typed[spans[-1][0] :] if spans else ""
    return found if found.isascii() else ""


class TokenTexts:
    """The texts of a vocabulary's tokens."""

    def __init__(self, texts: Sequence[str]) -> None:
        """Sort them. `texts` has "" for the tokens that may not be chosen."""
        self.texts = texts
        self._sorted = sorted((text, token) for token, text in enumerate(texts) if text)
        self._ids: dict[str, list[int]] = {}
        for text, token in self._sorted:
            self._ids.setdefault(text, []).append(token)

    def continuing(self, rest: str) -> list[int]:
        """Return the tokens that are a beginning of `rest`, or begin with it."""
        shorter = [token for end in range(1, len(rest)) for token in self._ids.get(rest[:end], ())]
        longer = takewhile(lambda each: each[0].startswith(rest), self._sorted[bisect_left(self._sorted, (rest,)) :])
        return [*shorter, *(token for _, token in longer)]


class Healing(AdapterLogitsProcessor):
    """Restricts the first tokens of the requests that have a text left out of their prompt."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        """Read the vocabulary of the engine's model."""
        super().__init__(vllm_config, device, is_pin_memory)
        tokenizer = get_tokenizer(vllm_config.model_config.tokenizer)
        special = tokenizer.get_added_vocab().values()
        self._tokens = TokenTexts(
            ["" if token in special else tokenizer.decode([token]) for token in range(len(tokenizer))]
        )

    def is_argmax_invariant(self) -> bool:
        """Return False: it changes which token is the best."""
        return False

    def new_req_logits_processor(
        self, params: SamplingParams
    ) -> Callable[[list[int], torch.Tensor], torch.Tensor] | None:
        """Return the function that masks the logits of a request, of shape (vocabulary,); None for other requests."""
        wanted = (params.extra_args or {}).get(LEFT_OUT, "")
        if not wanted:
            return None

        def masked(output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
            rest = wanted[sum(len(self._tokens.texts[token]) for token in output_ids) :]
            if not rest:
                return logits
            allowed = self._tokens.continuing(rest)
            found = torch.full_like(logits, -torch.inf)
            found[allowed] = logits[allowed]
            return found

        return masked
