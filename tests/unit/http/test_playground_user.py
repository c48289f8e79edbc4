"""When a page must bring another token, and when it ends."""

import pytest

from completion_server.admission.callers import GRACE_S
from completion_server.core.credential import Scope
from completion_server.core.errors import CompletionError, PermissionDeniedError, UnauthenticatedError
from completion_server.core.request import Caller
from completion_server.http.identity import identify
from completion_server.http.playground.access import scope_reason
from completion_server.http.playground.messages import Token, message_of
from completion_server.http.playground.sign_in import PageUser
from tests.support.authentication import LONG_PAST_S, KnownCallers, callers, verified


class Page:
    """A page whose clocks a test sets: `known.now` in Unix seconds, and `now`."""

    def __init__(self, known: KnownCallers) -> None:
        self.known = known
        self.now = 0.0

    async def user(self, token: str) -> PageUser:
        identifying, scope = callers(self.known), {"client": ("10.0.0.7", 1), "state": {}}
        headers = {"x-api-key": token}
        caller = await identify(identifying, headers, scope)
        return PageUser(identifying, scope, headers, caller, locked, lambda: self.now, lambda: self.known.now)


def locked(caller: Caller) -> str:
    assert caller.credential is not None
    return scope_reason(caller.credential)


def admin(user: str = "ann", expires_at: float = LONG_PAST_S) -> Caller:
    return verified(user, *Scope, expires_at=expires_at)


async def test_an_expired_token_is_asked_for_once_and_may_be_replaced_in_time() -> None:
    page = Page(KnownCallers({"old": admin(), "new": admin(expires_at=2 * LONG_PAST_S)}))
    user = await page.user("old")
    assert (user.check(), user.locked_reason) == ("", "")
    page.known.now = LONG_PAST_S
    assert user.check() == "the token has expired"
    assert user.locked_reason == "the token has expired"
    page.now = GRACE_S - 1
    assert user.check() == ""
    await user.renew("new")
    page.now = 10 * GRACE_S
    assert (user.check(), user.locked_reason) == ("", "")
    page.known.now = 2 * LONG_PAST_S
    assert user.check()
    page.now += GRACE_S
    with pytest.raises(UnauthenticatedError, match="key id-of-ann: expired, and no valid one came"):
        user.check()


async def test_a_revoked_token_ends_the_page_at_once() -> None:
    page = Page(KnownCallers({"old": admin()}))
    user = await page.user("old")
    page.known.revoke("id-of-ann")
    with pytest.raises(UnauthenticatedError, match="key id-of-ann: was revoked"):
        user.check()


async def test_a_newer_token_is_that_of_the_same_user_and_has_its_own_scopes() -> None:
    page = Page(KnownCallers({"old": admin(), "bob": admin("bob"), "less": verified("ann", Scope.COMPLETE)}))
    user = await page.user("old")
    assert user.may_report
    refusals: tuple[tuple[str, type[CompletionError]], ...] = (
        ("bob", PermissionDeniedError), ("forged", UnauthenticatedError),
    )  # fmt: skip
    for token, refusal in refusals:
        with pytest.raises(refusal):
            await user.renew(token)
        assert user.locked_reason == ""
    await user.renew("less")
    assert "scope admin" in user.locked_reason
    assert not user.may_report


def test_a_token_is_not_in_what_is_logged_of_its_message() -> None:
    message = message_of('{"type":"token","token":"very-secret"}')
    assert isinstance(message, Token)
    assert message.token == "very-secret"
    assert "very-secret" not in repr(message)
