"""The mend of what vLLM spreads over drafted tokens on a CPU."""

import pytest
import torch

from completion_server.engine.vllm_cpu import FALLBACK, expand, register


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.int64])
def test_every_token_has_its_requests_value(dtype: torch.dtype) -> None:
    given, ends = torch.tensor([0, 5, 7], dtype=dtype), torch.tensor([2, 2, 5], dtype=torch.int32)
    output = torch.full((5,), -1, dtype=dtype)
    expand(output, given, ends, 0, 1, 128)
    assert output.tolist() == [1, 1, 7, 7, 7], "the first request's is replaced; the second has no drafted tokens"
    assert given.tolist() == [0, 5, 7]


def test_a_vllm_that_has_the_fallback_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.utils import cpu_triton_utils

    monkeypatch.setattr(cpu_triton_utils, FALLBACK, None)
    register()
    assert getattr(cpu_triton_utils, FALLBACK) is expand
    monkeypatch.delattr(cpu_triton_utils, FALLBACK)
    register()
    assert not hasattr(cpu_triton_utils, FALLBACK)
