"""Keys, made once."""

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from tests.unit.auth.issuers import Issuer, Wall


@pytest.fixture(scope="session")
def signers() -> list[ec.EllipticCurvePrivateKey]:
    return [ec.generate_private_key(ec.SECP256R1()) for _ in range(3)]


@pytest.fixture(scope="session")
def rsa_signer() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65_537, 2048)


@pytest.fixture
def wall() -> Wall:
    return Wall()


@pytest.fixture
def issuer(wall: Wall, signers: list[ec.EllipticCurvePrivateKey], monkeypatch: pytest.MonkeyPatch) -> Issuer:
    """An issuer that answers in the place of HTTP."""
    made = Issuer(wall, first=signers[0])
    monkeypatch.setattr(jwt.PyJWKClient, "fetch_data", lambda client: made.fetch(client.uri))
    return made
