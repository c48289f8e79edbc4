"""The steps in which the draft model does not run."""

from dataclasses import dataclass, field, replace

import pytest

from completion_server.engine.vllm.drafts.undrafted import needs_no_draft


@dataclass(frozen=True)
class Step:
    """What vLLM's scheduler output says of a step: by default two sequences with a token each, no drafts wanted."""

    num_spec_tokens_to_schedule: int = 0
    scheduled_spec_decode_tokens: dict[str, list[int]] = field(default_factory=dict)
    num_scheduled_tokens: dict[str, int] = field(default_factory=lambda: {"a": 1, "b": 1})
    completion_server_runs_draft: bool = True

    @property
    def total_num_scheduled_tokens(self) -> int:
        return sum(self.num_scheduled_tokens.values())


def test_decode_without_drafts_needs_no_draft_model() -> None:
    assert needs_no_draft(Step())


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(Step(num_spec_tokens_to_schedule=1), id="drafts are wanted"),
        pytest.param(Step(num_scheduled_tokens={"a": 1, "b": 40}), id="a prompt is computed"),
        pytest.param(
            replace(Step(), scheduled_spec_decode_tokens={"a": [7]}, num_scheduled_tokens={"a": 2, "b": 1}),
            id="the last drafts are verified",
        ),
    ],
)
def test_other_steps_run_the_draft_model(step: Step) -> None:
    assert not needs_no_draft(step)


def test_prompts_need_no_draft_model_that_is_switched_off() -> None:
    step = Step(num_scheduled_tokens={"a": 1, "b": 40}, completion_server_runs_draft=False)
    assert needs_no_draft(step)
    assert not needs_no_draft(replace(step, scheduled_spec_decode_tokens={"a": [7]}))
