"""What the log says of compiled models in vLLM's cache, after a start."""

from pathlib import Path

import pytest

pytest.importorskip("vllm")


@pytest.mark.filterwarnings("ignore")  # of imports
def test_a_start_compiles_loads_or_does_neither(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from completion_server.engine.vllm.compiled import CompiledCode

    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path))
    assert CompiledCode().describe() == ""
    first = CompiledCode()
    model = tmp_path / "torch_compile_cache" / "torch_aot_compile" / "hash" / "rank_0_0" / "model"
    model.parent.mkdir(parents=True)
    model.write_bytes(b"code")
    assert first.describe().startswith(f"compiled 1 models; the code is in {tmp_path}")
    assert CompiledCode().describe() == f"compiled code of an earlier start was loaded from {tmp_path}"
