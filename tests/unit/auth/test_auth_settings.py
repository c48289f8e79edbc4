"""The `[auth]` section: what switches authentication on, and what is refused."""

import asyncio
from pathlib import Path

import pytest

from completion_server.auth.settings import AuthSettings
from completion_server.composition.authentication import make_authenticator
from completion_server.config import load_config
from completion_server.core.credential import Scope
from completion_server.core.errors import ConfigError
from tests.support.cancels import cancel_and_wait
from tests.support.server import eventually
from tests.unit.auth.issuers import Issuer, Recorder, accepted, make_callers

ISSUER = ("auth.issuer=https://issuer.example", "auth.audience=completion")
CN = "auth.certificate_user=cn"


@pytest.mark.parametrize(
    ("overrides", "fault"),
    [
        (["auth.audience=x"], "auth.audience: needs issuer beside it, got 'x'"),
        (["auth.jwks_url=https://x/keys"], "auth.jwks_url: needs issuer beside it"),
        (["auth.issuer=https://x"], "auth.audience: must be set if issuer is"),
        (["auth.issuer=http://x.example", "auth.audience=x"], "auth.issuer: must be an https URL, or an http URL on"),
        (["auth.issuer=acme", "auth.audience=x"], "auth.issuer: must be an https URL"),
        ([*ISSUER, "auth.jwks_url=http://issuer.example/keys"], "auth.jwks_url: must be an https URL"),
        ([*ISSUER, "auth.jwks_url=https://x", f"auth.jwks_file={__file__}"], "auth.jwks_file: must not be set beside"),
        ([*ISSUER, "auth.jwks_file=/no/file"], "auth.jwks_file: no file /no/file"),
        ([*ISSUER, "auth.algorithms=['none']"], "auth.algorithms: must be some of RS256, "),
        ([*ISSUER, "auth.algorithms=['ES256', 'HS256']"], "EdDSA, got HS256"),
        (["auth.algorithms=[]"], "EdDSA, got none"),
        (["auth.leeway_s=301"], "auth.leeway_s: must be at most 300, got 301"),
        (["auth.user_claim=''"], 'auth.user_claim: must name a claim, got ""'),
        (["auth.default_scopes=['root']"], "auth.default_scopes.0: "),
        (["auth.default_scopes=[]"], "auth.default_scopes: must name at least one scope"),
        ([CN], "auth.certificate_user: needs server.tls.client_ca"),
        (["auth.certificate_user=dn"], "auth.certificate_user: input should be 'off', 'san_uri', "),
        (["auth.certificate_pattern=x"], "auth.certificate_pattern: needs certificate_user beside it"),
        (["auth.certificate_admins=['ops']"], "auth.certificate_admins: needs certificate_user beside it"),
        ([CN, "auth.certificate_pattern=("], "auth.certificate_pattern: not a regular expression"),
        ([CN, "auth.certificate_pattern=(?P<name>.*)"], "must have a group (?P<user>...)"),
        (
            [CN, "auth.certificate_pattern=(?P<user>.)(?P<tenant>.)", "auth.certificate_tenant=x"],
            "auth.certificate_tenant: must not be set if certificate_pattern has a group tenant",
        ),
    ],
)
def test_an_error_names_the_key(overrides: list[str], fault: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, overrides, {})
    assert fault in str(caught.value)


def test_authentication_is_off_unless_a_kind_of_credential_is_configured(tmp_path: Path) -> None:
    assert not load_config(None, [], {}).auth.is_on
    assert make_authenticator(load_config(None, [], {})) is None
    config = load_config(None, [f"auth.keys_file={tmp_path}/keys.json", "auth.default_scopes=['admin']"], {})
    on = config.auth
    assert on.is_on
    assert on.default_scopes == (Scope.ADMIN,)
    assert make_authenticator(config) is not None
    assert load_config(None, list(ISSUER), {}).auth.is_on
    assert AuthSettings(certificate_user="cn").is_on
    # An issuer whose keys are in a file, or at a URL, may have any name.
    assert AuthSettings(issuer="acme", audience="x", jwks_url="http://localhost:1/keys").is_on


def test_paths_are_relative_to_the_configuration(tmp_path: Path) -> None:
    config = tmp_path / "server.toml"
    config.write_text('[auth]\nkeys_file = "keys.json"\n')
    assert load_config(config, (), {}).auth.keys_file == str(tmp_path / "keys.json")


async def test_the_task_follows_files_and_the_issuer(issuer: Issuer) -> None:
    recorder = Recorder()
    callers = make_callers(issuer, recorder)
    task = asyncio.create_task(callers.run())
    await eventually(lambda: issuer.num_key_fetches == 1)
    assert await accepted(callers, issuer.token())
    assert issuer.num_key_fetches == 1
    await cancel_and_wait(task)
    assert recorder.results == [("token", "accepted")]
