"""Of the context that a plugin sends, the most relevant gets into a prompt that has room for little."""

from typing import Any

import pytest

from completion_server.admission.settings import LimitSettings
from completion_server.core.request import Caller
from completion_server.http import llama_cpp, openai, tabby
from completion_server.http.dialect import Dialect
from completion_server.http.recent import RecentRequests
from completion_server.http.requests import request_of
from tests.support.constants import with_constants
from tests.support.vocabularies import FAMILIES
from tests.unit.prompt.prompts import builder_of, text_of

WORST, BEST = ("".join(f"{name}_{i} = {i}\n" for i in range(40)) for name in ("worst", "best"))
FILES = f"<|file_sep|>worst.py\n{WORST}<|file_sep|>best.py\n{BEST}<|file_sep|>x.py\n"
MARKERS = f"{FILES}<|fim_prefix|>a = <|fim_suffix|>\n<|fim_middle|>"
INPUT_EXTRA = [{"filename": "worst.py", "text": WORST}, {"filename": "best.py", "text": BEST}]
DECLARED = {"filepath": "best.py", "body": BEST}
SCORED = [{"filepath": "worse.py", "body": WORST, "score": 0.5}, {"filepath": "good.py", "body": "good", "score": 0.9}]
RECENT = {"relevant_snippets_from_recently_opened_files": SCORED}
CASES: dict[str, tuple[Dialect, dict[str, Any]]] = {
    "llama.cpp": (llama_cpp.INFILL, {"prompt": "a = ", "input_extra": INPUT_EXTRA}),
    "raw prompt": (openai.OPENAI, {"prompt": MARKERS}),
    "tabby": (tabby.TABBY, {"segments": {"prefix": "a = ", "declarations": [DECLARED], **RECENT}}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("max_snippets", [1, 2])
def test_the_most_relevant_snippet_gets_the_room_that_there_is(case: str, max_snippets: int) -> None:
    dialect, body = CASES[case]
    limits = with_constants(LimitSettings(), max_snippets=max_snippets)
    asked, _reply = dialect.translate(body)
    recent = RecentRequests().place("ann", asked, 1, 0.0, has_name=True)
    request = request_of(asked, Caller("ann", "s"), recent, limits, began_at=0.0, now=0.0)
    builder = builder_of("qwen", max_prompt_tokens=200)
    text = text_of(FAMILIES["qwen"](), builder.build(request).token_ids)
    assert "best_0" in text
    assert "worst_" not in text


def test_scores_order_the_snippets_of_a_group() -> None:
    asked, _reply = tabby.TABBY.translate({"segments": {"prefix": "a", "declarations": [DECLARED], **RECENT}})
    assert [each.uri for each in asked.snippets] == ["best.py", "good.py", "worse.py"]
