"""The identity of a server's completions: what replicas must have in common to share them."""

import logging

import pytest

from completion_server.composition import shared_state
from completion_server.prompt.builder import PromptBuilder
from completion_server.state.secret import Secret
from tests.support.server import make_config
from tests.unit.prompt.prompts import builder_of

SECRET = Secret(bytes(range(32)))


@pytest.fixture(scope="module")
def prompts() -> PromptBuilder:
    return builder_of("qwen")


def identity_of(prompts: PromptBuilder, *overrides: str) -> str:
    return shared_state._completion_keys(make_config(*overrides), prompts, SECRET).identity_hash


def test_hosts_may_keep_the_model_in_different_folders(prompts: PromptBuilder) -> None:
    same = {identity_of(prompts, *overrides) for overrides in ((), ("engine.vllm.download_dir=/models",))}
    assert len(same) == 1
    assert identity_of(prompts, "engine.vllm.block_size=32") not in same


def test_the_identity_is_logged_once(prompts: PromptBuilder, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "completion_server.composition.shared_state"):
        identity = identity_of(prompts)
    assert [identity in message for message in caplog.messages] == [True]
