"""Lets an answer begin with given text: the first steps allow only tokens that go on with what is still to be said.

Lives in the engine core's process. It is a grammar to vLLM, which fills a row of a bitmask for each token of a step,
drafted ones included, and applies it on every runner. The scheduler takes the grammar away from a request whose text is
said, so that later steps cost nothing.

The step that ends a prompt verifies drafts, too, if the engine has some: the tokens of the given text, which otherwise
take steps of their own wherever the model says them just so.
"""

import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer
from vllm.config import ModelConfig
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request
from vllm.v1.structured_output.backend_types import StructuredOutputGrammar
from vllm.v1.structured_output.request import StructuredOutputRequest

from completion_server.core.vocabulary import Vocabulary, text_tokens
from completion_server.engine.vllm import BEGINS_WITH
from completion_server.engine.vllm.patches.patch import digest, source

logger = logging.getLogger(__name__)

_MASKS = 1024
"""Masks that are kept; 19 KiB each with 150,000 tokens."""
_RELIED_ON = {
    "_update_after_schedule": "2b527eb8070d3cce",
    "update_from_output": "85b29db96051135c",
    "make_spec_decoding_stats": "7065c195b8fdde52",
}
"""Digests of what drafts in the step that ends a prompt rely on: they change a plan of vLLM's behind its back."""
_WORD_BITS = 32
_ALL = -1


class Masks:
    """The tokens that may follow, as rows of vLLM's bitmask: bit i % 32 of word i // 32 is token i."""

    def __init__(self, tokens: dict[int, bytes], vocab_size: int) -> None:
        """`tokens` has the bytes of each token of text; `vocab_size` is that of the model, which may be padded."""
        tokens = {index: text for index, text in tokens.items() if index < vocab_size}
        self.text_of = tokens.get
        self.num_words = -(-vocab_size // _WORD_BITS)
        self._vocabulary = Vocabulary(tokens)
        self.row = lru_cache(_MASKS)(self._make_row)
        self.tokens_saying = lru_cache(_MASKS)(self._find_tokens)

    def _make_row(self, rest: bytes) -> torch.Tensor:
        """Return the row [num_words] of the tokens that begin with `rest`, or that `rest` begins with."""
        is_allowed = np.zeros(self.num_words * _WORD_BITS, dtype=np.bool_)
        for ids in (self._vocabulary.starting_with(rest), self._vocabulary.beginnings_of(rest)):
            is_allowed[np.frombuffer(ids, dtype=np.uint32)] = True
        return torch.from_numpy(np.packbits(is_allowed, bitorder="little").view(np.int32))

    def _find_tokens(self, text: bytes) -> tuple[int, ...]:
        """Return tokens that say `text`, each the longest that goes on with it; up to where no token does."""
        found: list[int] = []
        while text and (ids := self._vocabulary.beginnings_of(text)):
            found.append(ids[-1])
            text = text[len(self.text_of(ids[-1], b"")) :]
        return tuple(found)


class GivenBeginning(StructuredOutputGrammar):
    """The state of an answer that begins with given text."""

    def __init__(self, masks: Masks, text: str) -> None:
        self._masks = masks
        self._rests = [text.encode()]
        """What was still to be said after each token."""

    @property
    def is_said(self) -> bool:
        """Whether any token may follow."""
        return not self._rests[-1]

    def tokens(self) -> Sequence[int]:
        """Return tokens that say what is still to be said."""
        return self._masks.tokens_saying(self._rests[-1])

    def _rests_after(self, tokens: Iterable[int]) -> Iterator[bytes]:
        """Yield what is still to be said after each token, up to the first one that does not go on with it."""
        rest = self._rests[-1]
        for token in tokens:
            if rest:
                text = self._masks.text_of(token) or b""
                if not text or not (text.startswith(rest) or rest.startswith(text)):
                    return
                rest = rest[len(text) :]
            yield rest

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        """Go on by these tokens; return whether all of them fit."""
        del request_id
        rests = list(self._rests_after(tokens))
        self._rests += rests
        return len(rests) == len(tokens)

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        """Return the tokens before the first one that does not fit."""
        return tokens[: sum(1 for _rest in self._rests_after(tokens))]

    def rollback(self, num_tokens: int) -> None:
        """Go back by this many tokens."""
        del self._rests[len(self._rests) - num_tokens :]

    def fill_bitmask(self, bitmask: torch.Tensor, batch_index: int) -> None:
        """Fill a row of the bitmask, int32 [rows, words]."""
        if self.is_said:
            bitmask[batch_index].fill_(_ALL)
        else:
            bitmask[batch_index].copy_(self._masks.row(self._rests[-1]))

    def is_terminated(self) -> bool:
        """Return False: the answer goes on behind its beginning."""
        return False

    def reset(self) -> None:
        """Begin again."""
        del self._rests[1:]


class _Bitmasks:
    """Stands in for the backend of vLLM's grammars, of which the server has no other."""

    def __init__(self, num_words: int) -> None:
        self._num_words = num_words

    def allocate_token_bitmask(self, max_num_seqs: int) -> torch.Tensor:
        """Return a bitmask that allows everything."""
        return torch.full((max_num_seqs, self._num_words), _ALL, dtype=torch.int32)

    def destroy(self) -> None:
        """Free nothing."""


def _tokens_of(tokenizer: Any, model: ModelConfig) -> dict[int, bytes]:
    """Return the bytes of each token of text; none of a tokenizer for which the server builds no healed prompts."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    try:
        if backend is None:  # vLLM has a tokenizer of its own for some models
            backend = AutoTokenizer.from_pretrained(
                model.tokenizer, revision=model.tokenizer_revision
            ).backend_tokenizer
        return text_tokens(json.loads(backend.to_str()))
    except (AttributeError, OSError, ValueError) as error:
        logger.warning("answers can't begin with given text: %s", error)
        return {}


def _digest_of(method: str) -> str:
    try:
        return digest(source(f"{Scheduler.__module__}:{Scheduler.__name__}.{method}"))
    except LookupError:
        return ""


class HealingScheduler(Scheduler):
    """Gives a request with `BEGINS_WITH` among its `extra_args` the grammar of its beginning, until that is said."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        manager = self.structured_output_manager
        model = self.vllm_config.model_config
        self._masks = Masks(_tokens_of(getattr(manager, "tokenizer", None), model), model.get_vocab_size())
        manager.backend = _Bitmasks(self._masks.num_words)  # type: ignore[assignment]
        self._beginning: list[tuple[Request, GivenBeginning]] = []
        self.drafts_here = self._verifies_drafts_of_here()
        """Whether the worker verifies drafts that the scheduler made, also in the step that ends a prompt."""
        self._uncounted: set[str] = set()
        """The requests with such drafts in the step that runs."""
        if self.drafts_here:
            self.num_lookahead_tokens += self.num_spec_tokens  # vLLM allocates the places

    def _verifies_drafts_of_here(self) -> bool:
        config = self.vllm_config
        speculative = config.speculative_config
        if speculative is None or not self.num_spec_tokens or getattr(self, "use_v2_model_runner", True):
            return False
        # With a second step in flight the worker takes the tokens of one with drafts for one token and its drafts.
        is_alone = config.max_concurrent_batches == 1
        if not is_alone or self.has_mamba_layers or speculative.draft_sample_method != "greedy":
            return False
        if changed := [name for name, known in _RELIED_ON.items() if _digest_of(name) != known]:
            logger.warning("vLLM's scheduler has another %s: prompts end without drafts", " and ".join(changed))
        return not changed

    def add_request(self, request: Request) -> None:
        """Add a request; see vLLM."""
        extra = request.sampling_params.extra_args if request.sampling_params is not None else None
        if extra and (text := extra.get(BEGINS_WITH)):
            grammar = GivenBeginning(self._masks, text)
            # vLLM reads the parameters only to compile a grammar, and this one is there.
            request.structured_output_request = StructuredOutputRequest(
                StructuredOutputsParams(regex=""), grammar, reasoning_ended=True
            )
            self._beginning.append((request, grammar))
        super().add_request(request)

    def first_drafts(self, request: Request) -> list[int]:
        """Return the tokens that the last step of a prompt verifies as drafts."""
        structured = request.structured_output_request
        grammar = structured.grammar if structured is not None else None
        return list(grammar.tokens()) if isinstance(grammar, GivenBeginning) else []

    def _update_after_schedule(self, scheduler_output: SchedulerOutput) -> None:
        """Give drafts to requests whose prompts end in this step; vLLM itself drafts from the next one on."""
        self._uncounted = set()
        if self.drafts_here:
            self._add_first_drafts(scheduler_output)
        super()._update_after_schedule(scheduler_output)

    def _add_first_drafts(self, output: SchedulerOutput) -> None:
        planned, speculative = output.num_scheduled_tokens, self.vllm_config.speculative_config
        assert speculative is not None
        slots = speculative.max_num_new_slots_for_drafting * len(planned)  # the draft model's inputs are longer
        budget = min(self.max_num_scheduled_tokens, self.scheduler_config.max_num_batched_tokens - slots)
        for request_id, num_tokens in planned.items():
            request = self.requests[request_id]
            is_last = request.num_computed_tokens + num_tokens == request.num_prompt_tokens == request.num_tokens
            if not is_last or request_id in output.scheduled_spec_decode_tokens:
                continue
            room = min(
                self.num_spec_tokens,
                budget - output.total_num_scheduled_tokens,
                self.max_model_len - request.num_tokens - 1,
            )
            if drafts := self.first_drafts(request)[: max(0, room)]:
                output.scheduled_spec_decode_tokens[request_id] = drafts
                planned[request_id] += len(drafts)
                output.total_num_scheduled_tokens += len(drafts)
                self._uncounted.add(request_id)

    def make_spec_decoding_stats(self, spec_decoding_stats: Any, *args: Any, **kwargs: Any) -> Any:
        """Count the drafts of a request; see vLLM. Those of a prompt's last step tell nothing of the next ones."""
        if kwargs.get("request_id") in self._uncounted:
            return spec_decoding_stats
        return super().make_spec_decoding_stats(spec_decoding_stats, *args, **kwargs)

    def update_from_output(self, *args: Any, **kwargs: Any) -> Any:
        """Take a step's tokens; see vLLM."""
        requests = [self.requests[each] for each in self._uncounted if each in self.requests]
        metrics = [request.spec_decode_metrics for request in requests]
        for request in requests:
            request.spec_decode_metrics = None
        outputs = super().update_from_output(*args, **kwargs)
        for request, metric in zip(requests, metrics, strict=True):
            request.spec_decode_metrics = metric
        if self._beginning:
            for request, grammar in self._beginning:
                if grammar.is_said:
                    request.structured_output_request = None
            self._beginning = [each for each in self._beginning if not (each[1].is_said or each[0].is_finished())]
        return outputs
