"""Steps and token counts, assembled from the reports of vLLM's engine core."""

from types import SimpleNamespace

from completion_server.engine.interface import EngineStep
from completion_server.engine.vllm.token_accounting import GenerationProgress, StepMeter


def output(num_tokens: int, *, is_first: bool = False, is_last: bool = False) -> SimpleNamespace:
    return SimpleNamespace(
        new_token_ids=[7] * num_tokens,
        prefill_stats=SimpleNamespace() if is_first else None,
        finish_reason="stop" if is_last else None,
    )


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
