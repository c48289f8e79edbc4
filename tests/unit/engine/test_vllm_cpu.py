"""What is mended of vLLM's sampling on a CPU, piece by piece."""

import pytest
import torch

from completion_server.engine.vllm_cpu import FALLBACK, expand, register, rewind


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.int64])
def test_every_token_has_its_requests_value(dtype: torch.dtype) -> None:
    given, ends = torch.tensor([0, 5, 7], dtype=dtype), torch.tensor([2, 2, 5], dtype=torch.int32)
    output = torch.full((5,), -1, dtype=dtype)
    expand(output, given, ends, 0, 1, 128)
    assert output.tolist() == [1, 1, 7, 7, 7], "the first request's is replaced; the second has no drafted tokens"
    assert given.tolist() == [0, 5, 7]


def test_a_rewound_generator_draws_what_it_drew() -> None:
    generator = torch.Generator().manual_seed(7)
    drawn = torch.rand(3, generator=generator)
    rewind(generator)
    assert torch.equal(torch.rand(3, generator=generator), drawn)
    rewind(None)


@pytest.mark.parametrize("is_cpu", [True, False])
def test_the_fallback_is_replaced_on_a_cpu_alone(is_cpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.platforms import current_platform
    from vllm.utils import cpu_triton_utils

    monkeypatch.setattr(type(current_platform), "is_cpu", lambda _self: is_cpu)
    monkeypatch.setattr(type(current_platform), "register_triton_kernel_overrides", staticmethod(lambda: None))
    monkeypatch.setattr(cpu_triton_utils, FALLBACK, None)
    register()
    assert getattr(cpu_triton_utils, FALLBACK) is (expand if is_cpu else None)
