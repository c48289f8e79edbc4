"""The file of API keys, as `completion-server keys` writes it. It holds hashes; nobody can make a key from it.

A secret has 256 random bits, so a plain SHA-256 hides it: there is nothing to guess.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from completion_server.auth.claims import MAX_NAME_BYTES, is_name
from completion_server.core.credential import Scope
from completion_server.core.files import replacing_file

PREFIX = "cs_"
"""Begins each token, so that scanners for leaked secrets find it."""
_TOKEN = re.compile(r"cs_([0-9a-f]{12})_([0-9a-f]{64})")
_FILE_MODE = 0o600
_LOCK_WAIT_S = 10.0
_LOCK_PAUSE_S = 0.02


def _checked_name(name: str) -> str:
    if not is_name(name):
        msg = f"must be at most {MAX_NAME_BYTES} bytes of printable text"
        raise ValueError(msg)
    return name


_Name = Annotated[str, AfterValidator(_checked_name)]
_Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


@dataclass(frozen=True, slots=True)
class ApiKey:
    """An API key. Times are Unix seconds."""

    id: Annotated[str, Field(pattern=r"^[0-9a-f]{12}$")]
    digest: _Digest
    """SHA-256 of its secret."""
    user: _Name
    tenant: _Name | Literal[""]
    scopes: tuple[Scope, ...]
    created: int
    expires: int | None = None
    revoked: int | None = None
    previous_digest: _Digest | Literal[""] = ""
    """SHA-256 of its secret before the last rotation."""
    previous_until: int = 0
    """When that secret ends."""

    def is_usable(self, now: float) -> bool:
        """Return whether it is neither revoked nor expired."""
        return self.revoked is None and (self.expires is None or now < self.expires)


@dataclass(frozen=True, slots=True)
class _Content:
    version: Literal[1]
    keys: tuple[ApiKey, ...]


_CONTENT = TypeAdapter(_Content)


def parse_keys(data: bytes) -> tuple[ApiKey, ...]:
    """Return the keys in a file's content.

    Raises:
        ValueError: it is broken; the message quotes nothing of it.

    """
    try:
        keys = _CONTENT.validate_json(data).keys
    except ValidationError as error:
        fault = error.errors(include_input=False, include_url=False, include_context=False)[0]
        where = ".".join(str(part) for part in fault["loc"])
        msg = f"{where}: {fault['msg']}" if where else fault["msg"]
        raise ValueError(msg) from None
    if len({key.id for key in keys}) < len(keys):
        raise ValueError("keys: two have the same id")
    return keys


def split_token(token: str) -> tuple[str, str] | None:
    """Return the id and the secret's digest of a token; None if it has not the form of an API key."""
    match = _TOKEN.fullmatch(token)
    return (match[1], _digest(match[2])) if match else None


def new_key(
    user: str, tenant: str, scopes: Sequence[Scope], now: float, expires_after_s: int | None
) -> tuple[ApiKey, str]:
    """Return a new key and its token, which nothing keeps.

    Raises:
        ValueError: a name is empty, too long or not printable.

    """
    for what, name in (("USER", user), *((("--tenant", tenant),) if tenant else ())):
        if not is_name(name):
            msg = f"{what}: must be 1 to {MAX_NAME_BYTES} bytes of printable text"
            raise ValueError(msg)
    key_id, secret = secrets.token_hex(6), secrets.token_hex(32)
    expires = None if expires_after_s is None else int(now) + expires_after_s
    key = ApiKey(key_id, _digest(secret), user, tenant, tuple(dict.fromkeys(scopes)), int(now), expires)
    return key, _token(key_id, secret)


def rotated(key: ApiKey, now: float, overlap_s: int) -> tuple[ApiKey, str]:
    """Return the key with a new secret, and its token. The old secret ends after `overlap_s`.

    Raises:
        ValueError: the secret before the last rotation would end too early, since only one old secret is kept.

    """
    if overlap_s and key.previous_digest and now < key.previous_until:
        ends = datetime.fromtimestamp(key.previous_until, UTC)
        when = f"{ends:%Y-%m-%d %H:%M:%S} UTC"
        msg = f"the token before the last rotation counts until {when}; without --overlap all old tokens end now"
        raise ValueError(msg)
    secret = secrets.token_hex(32)
    previous, until = (key.digest, int(now) + overlap_s) if overlap_s else ("", 0)
    new = replace(key, digest=_digest(secret), previous_digest=previous, previous_until=until)
    return new, _token(key.id, secret)


@contextlib.contextmanager
def editing(path: Path) -> Iterator[dict[str, ApiKey]]:
    """Yield the keys by id, to be changed, and write the file. Only one process edits it at a time.

    An exception within leaves the file as it was.

    Raises:
        OSError: the file can't be read or written, or another process kept it locked for 10 s.
        ValueError: the file is broken.

    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # A file beside it: the keys' own file is another one after each change.
    lock = _open_lock(path.with_name(f".{path.name}.lock"), path)
    try:
        _wait_for(lock, path)
        keys = {key.id: key for key in read_keys(path)}
        yield keys
        _write(path, keys.values())
    finally:
        os.close(lock)


def read_keys(path: Path) -> tuple[ApiKey, ...]:
    """Return the keys in a file, none if there is no file.

    Raises:
        OSError: the file can't be read.
        ValueError: the file is broken.

    """
    try:
        return parse_keys(path.read_bytes())
    except FileNotFoundError:
        return ()


def _write(path: Path, keys: Iterable[ApiKey]) -> None:
    content = {"version": 1, "keys": [asdict(key) for key in keys]}
    with replacing_file(path, mode=_FILE_MODE) as file:
        _keep_owner(file.fileno(), path)
        file.write(json.dumps(content, indent=1).encode())


def _keep_owner(descriptor: int, path: Path) -> None:
    """Let root's change leave a file to the owner of the keys, or of their folder, who must read and change them."""
    if os.geteuid() == 0:
        owner = (path if path.exists() else path.parent).stat()
        os.fchown(descriptor, owner.st_uid, owner.st_gid)


def _open_lock(lock_path: Path, path: Path) -> int:
    """Open the lock, and make it if there is none. One that is there may be the folder owner's link to any file."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        lock = os.open(lock_path, flags | os.O_CREAT | os.O_EXCL, _FILE_MODE)
    except FileExistsError:
        return os.open(lock_path, flags)
    _keep_owner(lock, path)
    return lock


def _wait_for(lock: int, path: Path) -> None:
    ends_at = time.monotonic() + _LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= ends_at:
                msg = f"another command has kept {path} locked for {_LOCK_WAIT_S:g} s"
                raise TimeoutError(msg) from None
            time.sleep(_LOCK_PAUSE_S)
        else:
            return


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _token(key_id: str, secret: str) -> str:
    return f"{PREFIX}{key_id}_{secret}"
