"""The cache salts around a time without a draft model."""

from completion_server.engine.draft_cache import DraftCache


def test_only_switching_on_separates_prompts() -> None:
    cache = DraftCache()
    cache.switch(is_off=False)
    assert cache.salt("ada") == "ada"
    cache.switch(is_off=True)
    cache.switch(is_off=True)
    assert cache.salt("ada") == "ada"
    cache.switch(is_off=False)
    first = cache.salt("ada")
    cache.switch(is_off=False)
    assert cache.salt("ada") == first != "ada"
    cache.switch(is_off=True)
    assert cache.salt("ada") == first
    cache.switch(is_off=False)
    assert cache.salt("ada") not in {first, "ada"}
    assert cache.salt("ada") != cache.salt("bob")
