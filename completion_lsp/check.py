"""`--check`: says in words whether a server can be reached, and what an editor would show."""

import asyncio
from collections.abc import Sequence

from completion.v1 import completion_pb2 as pb
from completion_client import (
    Completion,
    CompletionClient,
    ConnectionLostError,
    Endpoint,
    PermissionDeniedError,
    ServiceError,
    TokenError,
    UnauthenticatedError,
)
from completion_client.tls_faults import explain_tls
from completion_client.token_sources import VARIABLE
from completion_lsp.link import Servers

_EXAMPLE = "def fibonacci(n):\n    "
_TIMEOUT_S = 15.0
_WHOLE = ("stop", "length")
_GIVE_TOKEN = f"Give one with --token-file FILE, --token-command COMMAND or the variable {VARIABLE}."
_GET_TOKEN = "Get another token from who runs the server: completion-server keys add NAME."
_GET_SCOPE = "Completions need the scope complete: ask who runs the server."


async def check(servers: Servers) -> tuple[bool, str]:
    """Ask each server for a completion of an example; return whether one of them has it, and a report."""
    found = await asyncio.gather(*(_check(each, servers) for each in servers.endpoints))
    return any(works for works, _ in found), "\n".join(text for _, text in found)


async def _check(endpoint: Endpoint, servers: Servers) -> tuple[bool, str]:
    request = pb.CompleteRequest(
        document_uri="untitled:check.py", language_id="python", prefix=_EXAMPLE, trigger=pb.TRIGGER_EXPLICIT
    )
    try:
        async with CompletionClient([endpoint], user=servers.user, tenant=servers.tenant) as server:
            completion = await server.complete(request, timeout_s=_TIMEOUT_S)
    except ConnectionLostError as error:
        why = await asyncio.to_thread(explain_tls, endpoint)
        why = why or f"There is no connection: {error.message}. Is the server running, and the address right?"
        return False, _lines(f"{endpoint.address} can't be reached.", [why])
    except TokenError as error:
        return False, _lines(f"{endpoint.address} was reached, but {error.message}.", [_GET_TOKEN])
    except UnauthenticatedError as error:
        return False, _lines(f"{endpoint.address} was reached, but wants a token: {error.message}.", [_GIVE_TOKEN])
    except PermissionDeniedError as error:
        return False, _lines(f"{endpoint.address} knows you, but does not allow it: {error.message}.", [_GET_SCOPE])
    except ServiceError as error:
        return False, _lines(f"{endpoint.address} was reached, but refused: {error.message} ({error.status.name}).", [])
    return _judge(endpoint, completion)


def _judge(endpoint: Endpoint, completion: Completion) -> tuple[bool, str]:
    if completion.finish_reason not in _WHOLE:
        reason = completion.shed_reason or completion.finish_reason
        return False, _lines(f"{endpoint.address} was reached, but gave no completion now: {reason}.", [])
    where = f"{endpoint.address} answers, in {completion.total_ms:.0f} ms."
    if not completion.text.strip():
        return True, _lines(where, ["It has nothing to show for this example:", *_EXAMPLE.splitlines()])
    shown = (_EXAMPLE + completion.text).splitlines()
    return True, _lines(f"{where} An editor would show the part behind the cursor (|) as ghost text:", _marked(shown))


def _marked(lines: Sequence[str]) -> list[str]:
    """Return the lines of the example and its completion, with a bar at the cursor."""
    line, column = _EXAMPLE.count("\n"), len(_EXAMPLE.rpartition("\n")[2])
    return [f"{each[:column]}|{each[column:]}" if at == line else each for at, each in enumerate(lines)]


def _lines(first: str, others: Sequence[str]) -> str:
    return "\n".join((first, *(f"    {each}" for each in others)))
