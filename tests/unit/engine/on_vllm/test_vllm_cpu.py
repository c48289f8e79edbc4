"""The patches of vLLM's sampling on a CPU."""

import pytest
import torch

from completion_server.engine.vllm.cpu import FALLBACK, expand, register, without


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.int64])
def test_every_token_has_its_requests_value(dtype: torch.dtype) -> None:
    given, ends = torch.tensor([0, 5, 7], dtype=dtype), torch.tensor([2, 2, 5], dtype=torch.int32)
    output = torch.full((5,), -1, dtype=dtype)
    expand(output, given, ends, 0, 1, 128)
    assert output.tolist() == [1, 1, 7, 7, 7], "the first request's is replaced; the second has no drafted tokens"
    assert given.tolist() == [0, 5, 7]


def test_requests_without_a_computed_prompt_draw_nothing() -> None:
    generators = {index: torch.Generator().manual_seed(index) for index in range(3)}
    asleep = generators[1]
    torch.rand(1, generator=asleep)  # As a preempted request has drawn before.
    state = asleep.get_state()
    with without(generators, [1, 7]):
        assert sorted(generators) == [0, 2]
    assert generators[1] is asleep
    assert torch.equal(asleep.get_state(), state)


@pytest.mark.parametrize("is_cpu", [True, False])
def test_the_fallback_is_replaced_on_a_cpu_alone(is_cpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.platforms import current_platform
    from vllm.utils import cpu_triton_utils

    monkeypatch.setattr(type(current_platform), "is_cpu", lambda _self: is_cpu)
    monkeypatch.setattr(type(current_platform), "register_triton_kernel_overrides", staticmethod(lambda: None))
    monkeypatch.setattr(cpu_triton_utils, FALLBACK, None)
    register()
    assert getattr(cpu_triton_utils, FALLBACK) is (expand if is_cpu else None)
