"""Token healing in vLLM. The engine's process loads `Healing` by its name, so this module alone imports vLLM."""

from collections.abc import Callable

import torch
from vllm.config import VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.tokenizers import get_tokenizer
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

from loadtest.bench.quality.healing import LEFT_OUT, TokenTexts


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
