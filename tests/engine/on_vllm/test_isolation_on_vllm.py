"""The salts of tenants on the real engine: the same code shares cached tokens within one tenant alone."""

from typing import TYPE_CHECKING

import pytest

from completion_server.core.request import Caller
from completion_server.engine.interface import GenerationRequest
from completion_server.engine.settings import CacheScope
from completion_server.serving.isolation import Isolation
from tests.engine.contract import prompt, run_request

if TYPE_CHECKING:
    from completion_server.engine.vllm.engine import VllmEngine

pytestmark = pytest.mark.serial

ADA, BOB, EVE = (
    Caller(user, "s", tenant, is_verified=True)
    for user, tenant in (("ada", "acme"), ("bob", "acme"), ("eve", "initech"))
)


@pytest.mark.parametrize(("scope", "variant"), [("user", 61), ("tenant", 62)])
async def test_tenants_with_the_same_code_share_no_cached_tokens(
    vllm_engine: "VllmEngine", scope: CacheScope, variant: int
) -> None:
    isolation, token_ids = Isolation(f"secret {scope}".encode(), scope), prompt(400, variant)

    async def num_cached(caller: Caller, name: str) -> int:
        request = GenerationRequest(f"isolation-{scope}-{name}", token_ids, 4, cache_salt=isolation.salt(caller))
        (num,) = (await run_request(vllm_engine, request)).cached
        return num

    assert await num_cached(ADA, "first") == 0
    assert await num_cached(ADA, "again") > 0
    assert await num_cached(EVE, "other tenant") == 0
    assert (await num_cached(BOB, "same tenant") > 0) is (scope == "tenant")
