"""Tokens of an issuer: who they name, which are refused, and when the issuer's keys are fetched."""

import asyncio
import base64
import json
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from completion_server.auth import tokens
from completion_server.auth.claims import Result
from completion_server.auth.issuer import MIN_PAUSE_S, REFRESH_S
from completion_server.core.credential import Scope
from completion_server.core.errors import ConfigError, IssuerUnavailableError
from tests.support.cancels import cancel_and_wait
from tests.support.server import eventually
from tests.unit.auth.issuers import (
    Issuer,
    Recorder,
    Wall,
    accepted,
    by_hand,
    ends_at,
    jwk,
    make_callers,
    refusal,
    scopes,
    told,
)

Signers = list[EllipticCurvePrivateKey]
DAY_S = 86_400
NOW = Wall().now


async def test_a_token_names_its_holder(issuer: Issuer) -> None:
    callers = make_callers(issuer)
    found = await accepted(callers, issuer.token(jti="t1", scope="openid complete admin"))
    assert told(found) == ("ada", "acme", "token", "t1")
    assert scopes(found) == {Scope.COMPLETE, Scope.ADMIN}
    assert ends_at(found) == NOW + 600 + 30
    assert callers.is_current(found)
    issuer.wall.now = ends_at(found)
    assert not callers.is_current(found)


TEAM = "https://acme.example/team"


@pytest.mark.parametrize(
    ("settings", "claims", "tenant", "allowed"),
    [
        ({}, {"tenant": None}, "", {Scope.COMPLETE, Scope.FEEDBACK}),
        (
            {"tenant_claim": TEAM, "scopes_claim": "roles"},
            {TEAM: "x", "roles": ["feedback", "y"]},
            "x",
            {Scope.FEEDBACK},
        ),
        (
            {"tenant_claim": "", "scopes_claim": "", "default_scopes": (Scope.ADMIN,)},
            {"scope": "complete"},
            "",
            {Scope.ADMIN},
        ),
    ],
)
async def test_the_claims_are_those_that_the_settings_name(
    issuer: Issuer, settings: dict[str, Any], claims: dict[str, Any], tenant: str, allowed: set[Scope]
) -> None:
    found = await accepted(make_callers(issuer, user_claim="email", **settings), issuer.token(email="eve", **claims))
    assert (found.user, found.tenant, scopes(found)) == ("eve", tenant, allowed)


BAD_CLAIMS: list[tuple[dict[str, Any], Result]] = [
    *(({"exp": bad}, Result.CLAIMS) for bad in (None, "soon", True, float("nan"), float("inf"), 10**400)),
    ({"exp": NOW - 30}, Result.EXPIRED),
    ({"nbf": NOW + 31}, Result.NOT_YET_VALID),
    ({"nbf": [1]}, Result.CLAIMS),
    ({"aud": None}, Result.CLAIMS),
    *(({"aud": bad}, Result.AUDIENCE) for bad in ("billing", ["billing", "completions"], {"completion": 1})),
    ({"iss": None}, Result.CLAIMS),
    ({"iss": "https://issuer.example/"}, Result.ISSUER),
    *(({"sub": bad}, Result.CLAIMS) for bad in (None, "", "a\nb", "\ud800", "x" * 257)),
    ({"tenant": ["acme"]}, Result.CLAIMS),
    *(({"scope": bad}, Result.CLAIMS) for bad in ({"complete": True}, [1])),
]


@pytest.mark.parametrize(("changes", "result"), BAD_CLAIMS, ids=str)
async def test_bad_claims_are_refused(issuer: Issuer, changes: dict[str, Any], result: Result) -> None:
    callers = make_callers(issuer)
    assert await refusal(callers, issuer.token(**changes)) is result
    assert await accepted(callers, issuer.token(exp=NOW - 29, nbf=NOW + 30, aud=["x", "completion"]))


def _signed_with_the_public_key(issuer: Issuer) -> str:
    public = issuer.keys["first"].public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return by_hand({"alg": "HS256", "kid": "first"}, issuer.claims(), public)


def _changed(issuer: Issuer) -> str:
    """Return a token whose claims were changed after it was signed."""
    header, _, signature = issuer.token().split(".")
    claims = base64.urlsafe_b64encode(json.dumps(issuer.claims(sub="root")).encode()).decode().rstrip("=")
    return f"{header}.{claims}.{signature}"


@pytest.mark.parametrize(
    ("make", "result"),
    [
        (lambda issuer: by_hand({"alg": "none", "kid": "first"}, issuer.claims()), Result.ALGORITHM),
        (_signed_with_the_public_key, Result.ALGORITHM),
        (lambda issuer: by_hand({"alg": ["ES256"]}, issuer.claims()), Result.ALGORITHM),
        (lambda issuer: by_hand({"alg": "RS256", "kid": "first"}, issuer.claims()), Result.ALGORITHM),
        (lambda issuer: issuer.token("rsa"), Result.ALGORITHM),  # its key is, by the set, for PS256
        (_changed, Result.FORGED),
        (lambda issuer: issuer.token() + "AA", Result.FORGED),
        (lambda issuer: issuer.token(key=generate_private_key(SECP256R1())), Result.FORGED),
        (lambda issuer: by_hand({"alg": "ES256", "kid": 1}, issuer.claims()), Result.MALFORMED),
        (lambda issuer: by_hand({"alg": "ES256", "kid": "k" * 300}, issuer.claims()), Result.MALFORMED),
        (lambda issuer: by_hand({"alg": "ES256", "kid": "first", "crit": ["exp"]}, issuer.claims()), Result.MALFORMED),
        (lambda issuer: issuer.token(more="x" * 8192), Result.MALFORMED),
        (lambda _issuer: base64.b64encode(b"[" * 5001).decode() + ".e30.AA", Result.MALFORMED),
        (lambda _issuer: "no.token", Result.MALFORMED),
        (lambda _issuer: "\udcff.e30.AA", Result.MALFORMED),
        (lambda _issuer: "cs_0123456789ab_" + 64 * "0", Result.UNKNOWN),  # API keys are not taken here
    ],
)  # fmt: skip
async def test_a_forged_token_is_refused(
    issuer: Issuer, rsa_signer: RSAPrivateKey, make: Callable[[Issuer], str], result: Result
) -> None:
    keys = [jwk(issuer.keys["first"]) | {"kid": "first"}, jwk(rsa_signer) | {"kid": "rsa", "alg": "PS256"}]
    issuer.keys["rsa"] = rsa_signer
    issuer.key_set = lambda: json.dumps({"keys": keys}).encode()  # type: ignore[method-assign]
    recorder = Recorder()
    callers = make_callers(issuer, recorder)
    assert await refusal(callers, make(issuer)) is result
    assert recorder.results[-1][1] == result.value
    assert await accepted(callers, issuer.token())
    assert issuer.num_key_fetches == 1


async def test_unknown_key_ids_cause_one_fetch_in_30_seconds(issuer: Issuer, signers: Signers, wall: Wall) -> None:
    callers = make_callers(issuer)
    assert await accepted(callers, issuer.token())
    for number in range(290):
        wall.now = NOW + number / 10
        assert await refusal(callers, issuer.token(f"other {number}", key=signers[1])) is Result.UNKNOWN
    assert issuer.num_key_fetches == 1
    wall.now = NOW + MIN_PAUSE_S
    many = [issuer.token(f"many {number}", key=signers[1]) for number in range(50)]
    found = await asyncio.gather(*(refusal(callers, token) for token in many))
    assert set(found) == {Result.UNKNOWN}
    assert issuer.num_key_fetches == 2
    assert issuer.fetched.count(issuer.fetched[0]) == 1, "the discovery document is fetched once"


async def test_an_issuer_that_does_not_answer_holds_one_thread(
    issuer: Issuer, wall: Wall, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("completion_server.auth.issuer._FETCH_S", 0.05)
    answers = threading.Event()
    fetch, begun = issuer.fetch, list[str]()

    def trickle(url: str) -> Any:
        begun.append(url)
        assert answers.wait(30)
        return fetch(url)

    monkeypatch.setattr(issuer, "fetch", trickle)
    callers = make_callers(issuer)
    for _ in range(3):
        wall.now += MIN_PAUSE_S
        with pytest.raises(IssuerUnavailableError):
            await accepted(callers, issuer.token())
    assert len(begun) == 1
    answers.set()

    async def is_known() -> bool:
        wall.now += MIN_PAUSE_S
        try:
            return bool(await accepted(callers, issuer.token()))
        except IssuerUnavailableError:
            return False

    await eventually(is_known)


async def test_a_key_counts_soon_after_the_issuer_shows_it_and_not_long_after_it_removes_it(
    issuer: Issuer, signers: Signers, wall: Wall
) -> None:
    callers = make_callers(issuer)
    old = issuer.token(exp=NOW + DAY_S)
    holder = await accepted(callers, old)
    issuer.keys["second"] = signers[1]
    wall.now += MIN_PAUSE_S - 1
    assert await refusal(callers, issuer.token("second")) is Result.UNKNOWN
    wall.now += 1
    assert await accepted(callers, issuer.token("second"))
    issuer.keys = {"third": signers[2]}
    wall.now += REFRESH_S - 1
    await callers.poll()
    assert await accepted(callers, old) is holder
    wall.now += 1
    await callers.poll()  # begins a fetch, which the next caller with a new key waits for
    assert await accepted(callers, issuer.token("third"))
    assert not callers.is_current(holder)
    assert await refusal(callers, old) is Result.UNKNOWN


async def test_while_the_issuer_is_away_its_known_keys_serve(
    issuer: Issuer, signers: Signers, wall: Wall, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = Recorder()
    callers = make_callers(issuer, recorder)
    token = issuer.token(exp=wall.now + 2 * DAY_S)
    issuer.is_away = True
    for _ in range(3):
        with pytest.raises(IssuerUnavailableError) as caught:
            await accepted(callers, token)
    assert caught.value.retry_after_ms
    assert len(issuer.fetched) == 1
    issuer.is_away = False
    wall.now += MIN_PAUSE_S
    assert await accepted(callers, token)
    assert recorder.results == [("token", "unavailable")] * 3 + [("token", "accepted")]
    issuer.is_away = True
    caplog.clear()
    for _ in range(4):
        wall.now += DAY_S / 4
        assert await refusal(callers, issuer.token("other", key=signers[1])) is Result.UNKNOWN
        assert await accepted(callers, token)
    assert recorder.failures == ["auth.issuer"] * 5
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert said == ["auth.issuer: its keys can't be fetched (Connection refused); those that are known stay"]


@pytest.mark.parametrize(
    "document",
    [
        b"", b"[]", b"[" * 100_000, b'{"keys": 1}', b'{"keys": []}', b'{"keys": [{"kty": "oct", "k": "AAAA"}]}',
        b'{"keys": [{"kty": "EC", "crv": "P-256", "x": "AA", "y": 1}]}',
        b'{"keys": [{"kty": "RSA", "n": "AQAB", "e": "AQAB"}]}',
    ],
)  # fmt: skip
async def test_a_broken_key_set_replaces_none(issuer: Issuer, wall: Wall, tmp_path: Path, document: bytes) -> None:
    path, recorder = tmp_path / "jwks.json", Recorder()
    path.write_bytes(document)
    with pytest.raises(ConfigError, match=r"auth\.jwks_file: .* can't be used"):
        make_callers(issuer, jwks_file=str(path))
    callers = make_callers(issuer, recorder)
    assert await accepted(callers, issuer.token())
    issuer.key_set = lambda: document  # type: ignore[method-assign]
    wall.now += REFRESH_S
    await callers.poll()
    await eventually(lambda: recorder.failures == ["auth.issuer"])
    assert await accepted(callers, issuer.token())


@pytest.mark.parametrize(
    "document",
    [
        {"issuer": "https://other.example", "jwks_uri": "https://other.example/keys"},
        {"issuer": "https://issuer.example", "jwks_uri": "http://issuer.example/keys"},
        {"issuer": "https://issuer.example"},
    ],
)
async def test_the_discovery_document_must_be_the_issuers_and_name_a_safe_place(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch, document: dict[str, str]
) -> None:
    urls: list[str] = []
    monkeypatch.setattr(issuer, "fetch", lambda url: urls.append(url) or document)
    with pytest.raises(IssuerUnavailableError):
        await accepted(make_callers(issuer), issuer.token())
    assert urls == ["https://issuer.example/.well-known/openid-configuration"]


async def test_a_token_is_verified_once_and_the_table_of_tokens_is_bounded(
    issuer: Issuer, wall: Wall, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "_MAX_VERIFIED", 2)
    decode, verified = jwt.decode, list[str]()

    def noting(token: str, *arguments: Any, **named: Any) -> Any:
        verified.append(token)
        return decode(token, *arguments, **named)

    monkeypatch.setattr(tokens.jwt, "decode", noting)
    callers, token, others = make_callers(issuer), issuer.token(), [issuer.token(sub=name) for name in ("bob", "cyd")]
    for each in (token, token, token, *others, token):
        assert await accepted(callers, each)
    assert verified == [token, *others, token]
    wall.now += 600 + 30
    assert await refusal(callers, token) is Result.EXPIRED


async def test_a_token_without_a_key_id_needs_an_issuer_with_one_key(issuer: Issuer, signers: Signers) -> None:
    bare = jwt.encode(issuer.claims(), signers[0], "ES256")
    assert await accepted(make_callers(issuer), bare)
    issuer.keys["second"] = signers[1]
    assert await refusal(make_callers(issuer), bare) is Result.UNKNOWN


async def test_a_file_of_keys_is_read_again_when_it_changes(issuer: Issuer, signers: Signers, tmp_path: Path) -> None:
    path, recorder = tmp_path / "jwks.json", Recorder()
    with pytest.raises(ConfigError, match=r"auth\.jwks_file: no file"):
        make_callers(issuer, jwks_file=str(path))
    path.write_bytes(issuer.key_set())
    callers = make_callers(issuer, recorder, jwks_file=str(path))
    old, new = issuer.token(), issuer.token("second", key=signers[1])
    assert await refusal(callers, new) is Result.UNKNOWN
    path.write_bytes(b"{")
    await callers.poll()
    assert await accepted(callers, old)
    issuer.keys = {"second": signers[1]}
    path.write_bytes(issuer.key_set())
    await callers.poll()
    assert await accepted(callers, new)
    assert await refusal(callers, old) is Result.UNKNOWN
    assert recorder.failures == ["auth.jwks_file"]
    assert issuer.fetched == []


async def test_the_task_follows_files_and_the_issuer(issuer: Issuer) -> None:
    recorder = Recorder()
    callers = make_callers(issuer, recorder)
    task = asyncio.create_task(callers.run())
    await eventually(lambda: issuer.num_key_fetches == 1)
    assert await accepted(callers, issuer.token())
    assert issuer.num_key_fetches == 1
    await cancel_and_wait(task)
    assert recorder.results == [("token", "accepted")]
