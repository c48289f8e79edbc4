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

from completion_server.core import safe_logging

ENABLE_ENV = "COMPLETION_SERVER_ENGINE_CHILD"
"""Set by the server for the processes it starts: the plugin does nothing in anybody else's vLLM."""

PARENT_ENV = "COMPLETION_SERVER_ENGINE_PARENT"
"""The process id of the one that starts an engine's process."""

NICE_ENV = "COMPLETION_SERVER_ENGINE_NICE"
"""How much less than the server's own these processes count where they all want the same cores."""

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


def register() -> None:
    """Leave the server's process group, end with the server, and log no client text.

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
