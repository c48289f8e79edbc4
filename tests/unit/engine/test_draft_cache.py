"""The cache salts around a time without a draft model."""

from completion_server.engine.draft_cache import SEPARATED, DraftCache


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


def test_salts_that_are_separated_already_stay() -> None:
    cache = DraftCache()
    cache.switch(is_off=True)
    cache.switch(is_off=False)
    assert cache.salt(SEPARATED + "ada") == SEPARATED + "ada"


def test_a_tenants_name_cannot_begin_a_separated_salt() -> None:
    assert SEPARATED.startswith("\0"), "metadata has no NUL character"
