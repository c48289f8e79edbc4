"""When a page must bring another token, and when it ends."""

import pytest

from completion_server.admission.callers import GRACE_S, Callers
from completion_server.admission.entrance import Arrival, Entrance
from completion_server.admission.identity import Identity
from completion_server.admission.refusals import Refusals, refusal_budgets
from completion_server.admission.settings import AdmissionSettings, LimitSettings
from completion_server.auth.principal import Credentials, Principal, Scope
from completion_server.core.errors import CompletionError, PermissionDeniedError, UnauthenticatedError
from completion_server.http.playground.access import scope_reason
from completion_server.http.playground.messages import Token, message_of
from completion_server.http.playground.sign_in import PageUser
from tests.support.tokens import Tokens, principal

EXPIRES_AT = 1000.0


class Page:
    """A page whose clocks a test sets: `tokens.now` in Unix seconds, and `now`."""

    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens
        self.now = 0.0

    async def user(self, token: str) -> PageUser:
        settings = AdmissionSettings()
        entrance = Entrance(settings, LimitSettings(), self.tokens)
        callers = Callers(entrance, Refusals(*refusal_budgets(settings), lambda: self.now))
        arrival = Arrival("", "", "10.0.0.7:1", "10.0.0.7", Credentials(token))
        identity = await callers.identify(arrival)
        return PageUser(callers, arrival, identity, locked, lambda: self.now, lambda: self.tokens.now)


def locked(identity: Identity) -> str:
    assert identity.principal is not None
    return scope_reason(identity.principal)


def admin(user: str = "ann", expires_at: float = EXPIRES_AT) -> Principal:
    return principal(user, *Scope, expires_at=expires_at)


async def test_an_expired_token_is_asked_for_once_and_may_be_replaced_in_time() -> None:
    page = Page(Tokens({"old": admin(), "new": admin(expires_at=2 * EXPIRES_AT)}))
    user = await page.user("old")
    assert (user.check(), user.locked_reason) == ("", "")
    page.tokens.now = EXPIRES_AT
    assert user.check() == "the token has expired"
    assert user.locked_reason == "the token has expired"
    page.now = GRACE_S - 1
    assert user.check() == ""
    await user.renew("new")
    page.now = 10 * GRACE_S
    assert (user.check(), user.locked_reason) == ("", "")
    page.tokens.now = 2 * EXPIRES_AT
    assert user.check()
    page.now += GRACE_S
    with pytest.raises(UnauthenticatedError, match="key id-of-ann: expired, and no valid one came"):
        user.check()


async def test_a_revoked_token_ends_the_page_at_once() -> None:
    page = Page(Tokens({"old": admin()}))
    user = await page.user("old")
    page.tokens.revoke("old")
    with pytest.raises(UnauthenticatedError, match="key id-of-ann: was revoked"):
        user.check()


async def test_a_newer_token_is_that_of_the_same_user_and_has_its_own_scopes() -> None:
    page = Page(Tokens({"old": admin(), "bob": admin("bob"), "less": principal("ann", Scope.COMPLETE)}))
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
