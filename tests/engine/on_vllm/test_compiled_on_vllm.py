"""Compiled models on the real engine, on a CPU."""

from pathlib import Path

import pytest

from completion_server.engine.interface import NGRAM, GenerationRequest
from completion_server.engine.vllm.patches.patch import LEFT_OUT_ENV
from tests.engine.contract import prompt, run_request
from tests.support.models import DRAFT, TARGET
from tests.support.vllm import make_vllm_engine

pytestmark = [pytest.mark.serial, pytest.mark.full]


async def texts_of_a_start(model: Path, draft_model: str) -> list[str]:
    """Start a compiled engine and return what it writes with drafts and without."""
    settings = f"engine.model={model}", f"engine.draft_model={draft_model}", "engine.enforce_eager=false"
    engine = make_vllm_engine(*settings)
    await engine.start()
    try:
        control = engine.speculation
        assert control is not None
        token_ids = prompt(24, 7) * 4
        drafted = await run_request(engine, GenerationRequest("drafted", token_ids, 48))
        control.switch_off()
        return [drafted.text, (await run_request(engine, GenerationRequest("off", token_ids, 48))).text]
    finally:
        await engine.stop()


def compiled_code(cache: Path) -> dict[Path, int]:
    """Return the files of compiled models in vLLM's cache, and when each was written."""
    return {path: path.stat().st_mtime_ns for path in cache.glob("torch_compile_cache/torch_aot_compile/*/*/model")}


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("model", "draft_model", "num_compiled"), [(DRAFT, NGRAM, 1), (TARGET, str(DRAFT), 2)])
async def test_a_second_start_loads_what_the_first_one_compiled(
    model: Path,
    draft_model: str,
    num_compiled: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path))
    first = await texts_of_a_start(model, draft_model)
    kept = compiled_code(tmp_path)
    assert len(kept) == num_compiled
    second = await texts_of_a_start(model, draft_model)
    assert first == second
    assert first[0] == first[1], "drafts change no text"
    assert compiled_code(tmp_path) == kept, "nothing was compiled again"
    if draft_model == NGRAM:
        monkeypatch.setenv(LEFT_OUT_ENV, "compiled-loading")
        await texts_of_a_start(model, draft_model)
        assert compiled_code(tmp_path) != kept, "without the patch everything is compiled again"
