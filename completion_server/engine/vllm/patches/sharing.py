"""Patches for an engine core with several clients: a process may take the place of one that has ended.

A client's socket for requests (a ROUTER) can send to the core only once the core's (a DEALER) has connected to it. So
the core sends a first message to each client when it starts, for which the client waits. It is sent once, though the
core's socket connects again to whatever process binds the address next.
"""

import time
from collections.abc import Callable
from typing import Any

from completion_server.engine.vllm.patches.patch import patching

_WAKE_UP = b"\x05"
"""vLLM's type of a request that does nothing."""

_NO_DATA = b"\xc0"
"""Nothing, in MessagePack."""

_CORE = (0).to_bytes(2, "little")
"""The name of the only core of an engine without data parallelism."""

_RETRY_S = 0.01


@patching(
    "vllm.v1.engine.core:make_zmq_socket",
    fault="a front end that replaces another one can't attach to the engine",
    relies_on=dict.fromkeys(("0.32", "0.33"), "vllm.v1.engine.core:EngineCoreProc.process_input_sockets"),
    digests={"0.32": "64f70593d3c2b16c", "0.33": "05ccb56b568644c4"},
    is_required=True,
)
def repeated_ready(make_socket: Callable[..., Any]) -> Callable[..., Any]:
    """Let the engine core send its first message again to a client that asks for it by a request that does nothing."""
    import zmq

    def make_repeating_socket(context: Any, path: str, socket_type: int, *args: Any, **kwargs: Any) -> Any:
        made = make_socket(context, path, socket_type, *args, **kwargs)
        if socket_type == zmq.DEALER:
            _repeat_first(made)
        return made

    return make_repeating_socket


def _repeat_first(dealer: Any) -> None:
    send, receive = dealer.send, dealer.recv_multipart
    sent: list[bytes] = []

    def send_and_keep(data: bytes, *args: Any, **kwargs: Any) -> Any:
        sent.append(data)
        dealer.send = send
        return send(data, *args, **kwargs)

    def receive_and_repeat(*args: Any, **kwargs: Any) -> Any:
        frames = receive(*args, **kwargs)
        if bytes(frames[0]) == _WAKE_UP:
            send(sent[0])
        return frames

    dealer.send, dealer.recv_multipart = send_and_keep, receive_and_repeat


@patching(
    "vllm.v1.engine.core_client:make_zmq_socket",
    fault="a front end that replaces another one can't attach to the engine",
    relies_on=dict.fromkeys(("0.32", "0.33"), "vllm.v1.engine.core_client:MPClient.__init__"),
    digests={"0.32": "d5347175cae6d906", "0.33": "3f70fcf92e30495a"},
    is_required=True,
)
def asked_ready(make_socket: Callable[..., Any], timeout_s: float) -> Callable[..., Any]:
    """Let a client ask the engine core for its first message, when the core has connected to its socket.

    It raises TimeoutError where vLLM waits for ten minutes.
    """
    import zmq

    def make_asking_socket(context: Any, path: str, socket_type: int, *args: Any, **kwargs: Any) -> Any:
        made = make_socket(context, path, socket_type, *args, **kwargs)
        if socket_type == zmq.ROUTER:
            try:
                _ask(zmq.Socket.shadow(made), time.monotonic() + timeout_s)
            except BaseException:
                made.close(linger=0)
                raise
        return made

    return make_asking_socket


def _ask(router: Any, deadline: float) -> None:
    import zmq

    router.setsockopt(zmq.ROUTER_MANDATORY, 1)  # without it, a message to a core that has not connected is dropped
    while True:
        try:
            router.send_multipart((_CORE, _WAKE_UP, _NO_DATA))
            break
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            if time.monotonic() > deadline:
                raise TimeoutError("the engine did not connect") from None
        time.sleep(_RETRY_S)
    router.setsockopt(zmq.ROUTER_MANDATORY, 0)
    if not router.poll(max(0, int(1000 * (deadline - time.monotonic())))):
        raise TimeoutError("the engine did not answer")


@patching(
    "vllm.v1.engine.core_client:_process_utility_output",
    fault="the reply to a call of a front end that has ended may end the one that replaces it",
    digests={"0.32": "fde3b9d58bd4f15b", "0.33": "fde3b9d58bd4f15b"},
    is_required=True,
)
def late_replies(process_output: Callable[..., None]) -> Callable[..., None]:
    """Ignore the replies to calls that another process made, which had this process's place before."""

    def process_own_output(output: Any, results: Any) -> None:
        if output.call_id in results:
            process_output(output, results)

    return process_own_output
