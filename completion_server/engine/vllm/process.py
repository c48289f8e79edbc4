"""Manners of the engine's own processes: what they inherit, whom they obey, and when they end.

Imports nothing of vLLM: `prepare` must run before vLLM is imported, and vLLM itself calls `register` in each of its
processes, as one of its general plugins.
"""

import logging
import os
import sys
import threading
import time
from multiprocessing import parent_process

import psutil

from completion_server.core import safe_logging
from completion_server.engine.settings import EngineSettings
from completion_server.engine.vllm import idle as vllm_idle

ENABLE_ENV = "COMPLETION_SERVER_ENGINE_CHILD"
"""Set by the server for the processes it starts: the plugin does nothing in anybody else's vLLM."""

PARENT_ENV = "COMPLETION_SERVER_ENGINE_PARENT"
"""The process id of the one that starts an engine's process."""

NICE_ENV = "COMPLETION_SERVER_ENGINE_NICE"
"""How much less than the server's own these processes count where they all want the same cores."""

_OTHER_HOSTS_KEYS = (
    "nnodes", "node_rank", "master_addr", "data_parallel_address", "data_parallel_rank", "data_parallel_start_rank",
    "data_parallel_size_local", "data_parallel_backend", "data_parallel_hybrid_lb", "data_parallel_external_lb",
    "data_parallel_multi_port_external_lb", "kv_transfer_config", "kv_events_config", "ec_transfer_config",
)  # fmt: skip
"""Arguments of vLLM for engines that other hosts have a part of, or exchange data with."""

_LOOPBACK = ("127.0.0.1", "::1")

_PARENT_POLL_S = 1.0

_DUMPS = "vllm.logging_utils.dump_input"
"""vLLM's logger for what a step that failed was given: draft tokens, which continue what a user typed, are in it."""


def yield_to_server(nice: int) -> None:
    """Have the engine's processes, when they start, let others go first: 0 to 19, as in nice(1)."""
    os.environ[NICE_ENV] = str(nice)


def prepare(log_level: str, cpu_kv_cache_gib: int) -> None:
    """Set what vLLM and its processes read from their environment, except where the operator has set it.

    vLLM would log to standard output, which is the server's own.
    """
    os.environ[ENABLE_ENV] = "1"
    os.environ[PARENT_ENV] = str(os.getpid())
    for name, value in (
        ("VLLM_LOGGING_LEVEL", log_level.upper()),
        ("VLLM_LOGGING_STREAM", "ext://sys.stderr"),
        ("VLLM_CPU_KVCACHE_SPACE", str(cpu_kv_cache_gib)),
        ("VLLM_NO_USAGE_STATS", "1"),
        ("TORCH_CPP_LOG_LEVEL", "ERROR"),
        ("PYTHONWARNINGS", "ignore"),
    ):
        os.environ.setdefault(name, value)


def keep_on_loopback(settings: EngineSettings) -> None:
    """Have the processes of an engine on one host listen on its loopback interface alone.

    They listen on the address of the host's name otherwise, without authentication. What the operator has set stays.
    """
    if spans_hosts(settings):
        return
    names = {entry.address: name for name, entries in psutil.net_if_addrs().items() for entry in entries}
    address = next((address for address in _LOOPBACK if address in names), None)
    if address is not None:
        os.environ.setdefault("VLLM_HOST_IP", address)
        os.environ.setdefault("GLOO_SOCKET_IFNAME", names[address])
        os.environ.setdefault("NCCL_SOCKET_IFNAME", names[address])


def spans_hosts(settings: EngineSettings) -> bool:
    """Tell whether the settings may let other hosts take part in the engine."""
    is_local = settings.vllm.get("distributed_executor_backend") in {None, "uni", "mp"}
    return not is_local or any(key in settings.vllm for key in _OTHER_HOSTS_KEYS)


def register() -> None:
    """Leave the server's process group, end with the server, log no client text, and be idle when the engine is.

    A terminal's Ctrl-C and a process manager's signal to the group mean the server, which then drains through this
    engine; an engine that took the signal too would cut the answers short. A server that was killed outright can't
    stop its engine, so the engine watches for that itself.
    """
    if not _is_engine_process():
        return
    keep_client_text_out_of_logs()
    end_with_parent()
    os.setpgid(0, 0)
    os.nice(int(os.environ.get(NICE_ENV, "0")))
    vllm_idle.patch()


def keep_client_text_out_of_logs() -> None:
    """Have this process log exceptions without their messages, which may hold token ids, and no scheduler output.

    Why an engine could not start is logged in full: it has seen no request by then.
    """
    safe_logging.install(keep_startup_failures=True)
    logging.getLogger(_DUMPS).addFilter(_drop)


def _drop(_record: logging.LogRecord) -> bool:
    return False


def end_with_parent() -> None:
    """From now on, end this process when the one that started it has ended. Does nothing but in an engine's process.

    That process has given its id in the environment. `os.getppid()` is another one if it has ended meanwhile, and
    `parent_process()` is None while multiprocessing still imports the main module.
    """
    parent_id, own_id = os.environ.get(PARENT_ENV), str(os.getpid())
    if not _is_engine_process() or parent_id is None or parent_id == own_id:
        return
    os.environ[PARENT_ENV] = own_id  # for the processes that this one starts, and so that it is watched once
    threading.Thread(target=_watch_parent, args=(int(parent_id),), daemon=True, name="parent-watch").start()


def _is_engine_process() -> bool:
    is_child = parent_process() is not None or "--multiprocessing-fork" in sys.orig_argv
    return is_child and ENABLE_ENV in os.environ


def _watch_parent(parent_id: int) -> None:
    while os.getppid() == parent_id:
        time.sleep(_PARENT_POLL_S)
    os._exit(1)
