"""Steps and token counts, assembled from the reports of vLLM's engine core."""

from types import SimpleNamespace
from typing import Any

from completion_server.engine.interface import EngineStep
from completion_server.engine.vllm.token_accounting import GenerationProgress, StepMeter, TokenAccounting


def spec(drafted: list[int], accepted: list[int]) -> SimpleNamespace:
    return SimpleNamespace(num_draft_tokens_per_pos=drafted, num_accepted_tokens_per_pos=accepted)


def output(num_tokens: int, *, is_first: bool = False, is_last: bool = False) -> SimpleNamespace:
    return SimpleNamespace(
        new_token_ids=[7] * num_tokens,
        prefill_stats=SimpleNamespace() if is_first else None,
        finish_reason="stop" if is_last else None,
    )


def test_a_step_is_assembled_from_several_reports() -> None:
    steps: list[EngineStep] = []
    meter = StepMeter()
    meter.on_step = steps.append
    meter.output(output(1, is_first=True), 10.0)
    meter.end(None, num_running=1)
    meter.output(output(3), 10.5)
    meter.output(output(1, is_last=True), 10.5)
    meter.end(spec([2, 2, 0], [1, 1, 0]), num_running=1)
    assert steps == [EngineStep(1, 1, None, True), EngineStep(2, 4, 0.5, False, (2, 2), (1, 1))]


def test_a_step_after_a_possible_pause_has_no_time() -> None:
    steps: list[EngineStep] = []
    meter = StepMeter()
    meter.on_step = steps.append
    for at, num_running in ((1.0, 1), (2.0, 0), (9.0, 1), (10.0, 1)):
        meter.output(output(1, is_last=not num_running), at)
        meter.end(None, num_running)
    meter.end(None, num_running=1)  # a part of a prompt: no outputs
    meter.output(output(1), 12.0)
    meter.end(None, num_running=1)
    assert [step.seconds for step in steps] == [None, 1.0, None, 1.0, None]
    assert not any(step.has_prompts for step in steps)


def test_drafts_are_estimated_by_k_until_vllm_reports_them() -> None:
    progress = GenerationProgress()
    progress.add(1, 4)
    assert (progress.drafted(), progress.accepted()) == (0, 0)
    progress.add(3, 4)
    progress.add(1, 0)
    assert (progress.drafted(), progress.accepted()) == (4, 2)
    progress.add(3, 0)  # K changed meanwhile
    assert progress.accepted() <= progress.drafted()
    progress.spec_metrics = SimpleNamespace(num_draft_tokens=9)
    assert progress.drafted() == 9


def test_outputs_without_a_generation_count_as_aborted() -> None:
    done: list[Any] = []
    states = {"a-1": SimpleNamespace(external_req_id="a")}
    processor = SimpleNamespace(request_states=states, process_outputs=lambda *args: done.append(args))
    accounting = TokenAccounting()
    accounting.lookup = (0, 2, 1)
    accounting.progress["a"] = GenerationProgress()
    accounting.watch(processor)

    def of(request_id: str, num_tokens: int) -> SimpleNamespace:
        return SimpleNamespace(**vars(output(num_tokens)), request_id=request_id, spec_decode_metrics=None)

    processor.process_outputs([of("a-1", 1)], 1.0, None)
    processor.process_outputs([of("a-1", 2), of("gone", 3)], 2.0, None)
    assert (accounting.num_generated_tokens, accounting.num_aborted_tokens) == (6, 3)
    assert accounting.progress["a"].num_drafted == 1
    assert len(done) == 2
