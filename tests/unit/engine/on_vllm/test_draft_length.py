"""A draft model that holds fewer tokens than its target."""

from types import SimpleNamespace
from typing import Any

import pytest

from completion_server.core.errors import ConfigError

pytest.importorskip("vllm")


def config(target: int, draft: int | None) -> Any:
    speculative = None if draft is None else SimpleNamespace(draft_model_config=SimpleNamespace(max_model_len=draft))
    return SimpleNamespace(model_config=SimpleNamespace(max_model_len=target), speculative_config=speculative)


def test_a_short_draft_model_is_refused_with_the_length_to_set() -> None:
    from completion_server.engine.vllm.arguments import check_draft_length

    with pytest.raises(ConfigError, match=r"max_model_len: the draft model holds 512 .*got 1024.*max_model_len=512"):
        check_draft_length(config(1024, 512))


@pytest.mark.parametrize("draft", [1024, None])
def test_other_engines_start(draft: int | None) -> None:
    from completion_server.engine.vllm.arguments import check_draft_length

    check_draft_length(config(1024, draft))
