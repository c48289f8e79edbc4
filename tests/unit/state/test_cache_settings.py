"""Settings of the completion cache that do not fit together."""

import pytest

from completion_server.state.settings import CacheSettings


def test_older_completions_are_only_found_by_asking_always() -> None:
    with pytest.raises(ValueError, match=r"shared_ttl_s.*look_up"):
        CacheSettings(shared_ttl_s=60.5)
    assert CacheSettings(shared_ttl_s=3600, look_up="always").shared_ttl_s == 3600
    assert CacheSettings(shared_ttl_s=60).look_up == "moved"
