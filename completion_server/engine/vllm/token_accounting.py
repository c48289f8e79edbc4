"""Counts the tokens that vLLM's engine core computed, by generation and by step.

Imports nothing of vLLM; reads vLLM's objects. vLLM reports a step in two calls: first its outputs, in one piece or
several, then the scheduler's statistics.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from completion_server.engine.interface import EngineStep, SpeculationLookup
from completion_server.engine.vllm.patches.processes import counted_outputs


@dataclasses.dataclass(slots=True)
class GenerationProgress:
    """The tokens computed for one generation, counted before outputs are merged for a slow consumer."""

    speculates: bool = True
    """Whether drafts are proposed for it."""
    num_tokens: int = 0
    num_steps: int = 0
    num_drafted: int = 0
    spec_metrics: Any = None

    def drafted(self) -> int:
        """Return the draft tokens proposed: exact after the generation's end, before that estimated by K."""
        if self.spec_metrics is not None:
            return int(self.spec_metrics.num_draft_tokens)
        return max(self.num_drafted, self.accepted())

    def accepted(self) -> int:
        """Return the draft tokens accepted: each step gives one token of the target's own and the accepted ones."""
        return max(0, self.num_tokens - self.num_steps)

    def add(self, num_tokens: int, num_speculative_tokens: int) -> None:
        """Count the tokens of a step. Drafts that the first step of a generation verified do not count."""
        if self.num_steps and self.speculates:
            self.num_drafted += num_speculative_tokens
        self.num_steps += 1 if self.num_steps else num_tokens
        self.num_tokens += num_tokens


@dataclasses.dataclass(slots=True)
class _StepCounts:
    """The outputs of a step, counted."""

    num_seqs: int = 0
    num_tokens: int = 0
    num_open: int = 0
    """Generations that go on."""
    has_first: bool = False
    """Whether some generation got its first token."""
    has_undrafted: bool = False
    """Whether the requests of some generations refused drafts."""
    ended_at: float | None = None
    """By the clock of the engine core's machine; None without outputs."""

    def add(self, output: Any, at: float) -> None:
        """Count an output of vLLM's, of the step that ended `at`."""
        num_tokens = len(output.new_token_ids)
        if num_tokens:
            self.ended_at = at
            self.num_seqs += 1
            self.num_tokens += num_tokens
            self.num_open += output.finish_reason is None
            self.has_first |= getattr(output, "prefill_stats", None) is not None


class StepMeter:
    """Assembles steps from vLLM's reports."""

    def __init__(self) -> None:
        self.on_step: Callable[[EngineStep], None] = lambda _step: None
        self._ended_at: float | None = None
        """End of the previous step, by the engine core's clock; None if it may have been idle since."""
        self._counts = _StepCounts()

    def output(self, output: Any, at: float, *, is_undrafted: bool = False) -> None:
        """Add what a generation got in the step that ended `at`."""
        self._counts.add(output, at)
        self._counts.has_undrafted |= is_undrafted and bool(output.new_token_ids)

    def end(self, speculation: Any, num_running: int) -> None:
        """End the step after all its outputs. `speculation` is vLLM's SpecDecodingStats, None without drafts."""
        before, counts = self._ended_at, self._counts
        # A step without outputs computed a part of a prompt, or nothing: the next step's beginning is unknown.
        self._ended_at, self._counts = counts.ended_at if num_running else None, _StepCounts()
        if counts.ended_at is None:
            return
        # A running generation without output had a part of its prompt computed, or will in the next step, which is
        # planned already.
        has_pieces = num_running > counts.num_open
        drafted = _drafted(speculation) if speculation is not None else ()
        self.on_step(
            EngineStep(
                num_seqs=counts.num_seqs,
                num_tokens=counts.num_tokens,
                seconds=None if before is None else counts.ended_at - before,
                has_prompts=has_pieces or counts.has_first,
                drafted=drafted,
                accepted=tuple(speculation.num_accepted_tokens_per_pos[: len(drafted)]) if drafted else (),
                has_undrafted=counts.has_undrafted,
            )
        )


class TokenAccounting:
    """Counts tokens as they leave the engine core, also those for aborted generations."""

    def __init__(self) -> None:
        self.num_generated_tokens = 0
        self.num_aborted_tokens = 0
        """Tokens computed for a generation after it was aborted."""
        self.progress: dict[str, GenerationProgress] = {}
        self.meter = StepMeter()
        self.lookup: SpeculationLookup = (0,)
        """The active K by number of sequences."""

    def watch(self, processor: Any) -> None:
        """Read each step's outputs from vLLM's output processor."""
        states = processor.request_states

        def count(outputs: Sequence[Any], at: float) -> None:
            num_speculative_tokens = self.lookup[min(len(outputs), len(self.lookup) - 1)]
            for output in outputs:
                state = states.get(output.request_id)
                progress = self.progress.get(state.external_req_id) if state is not None else None
                self._count(output, progress, num_speculative_tokens)
                self.meter.output(output, at, is_undrafted=progress is not None and not progress.speculates)

        counted_outputs.apply(processor, count)

    def _count(self, output: Any, progress: GenerationProgress | None, num_speculative_tokens: int) -> None:
        num_tokens = len(output.new_token_ids)
        self.num_generated_tokens += num_tokens
        if progress is None:
            self.num_aborted_tokens += num_tokens
            return
        if num_tokens:
            progress.add(num_tokens, num_speculative_tokens)
        if output.spec_decode_metrics is not None:
            progress.spec_metrics = output.spec_decode_metrics


def _drafted(speculation: Any) -> tuple[int, ...]:
    """Return the draft tokens that a step verified, by position up to the last."""
    counts = speculation.num_draft_tokens_per_pos
    num = len(counts)
    while num and not counts[num - 1]:
        num -= 1
    return tuple(int(count) for count in counts[:num])
