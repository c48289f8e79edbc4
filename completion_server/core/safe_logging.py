"""Keeps client text out of logs: exceptions are logged as their types and frames, never with their messages.

The message of an exception may quote client text (`int("...")`, `urlsplit`, a codec), and any library may log it. So
the rule is enforced in the factory of log records, for every logger, handler and formatter of the process, and in the
interpreter's hooks for uncaught exceptions. It can't detect client text that a log call formats into its message
itself, so log calls must not do that.
"""

import errno
import logging
import re
import sys
import threading
import traceback
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

logger = logging.getLogger(__name__)

_MAX_FRAMES = 50
_STARTUP_FAILURE = "failed to start"
"""Part of the message that vLLM's processes log if they can't start; until then they have seen no client text."""
_PLAIN_WORDS = re.compile(r"[\w .,:;!-]*")


def install(*, keep_startup_failures: bool = False) -> None:
    """Apply the rule to all log records of this process from now on, and to uncaught exceptions.

    With `keep_startup_failures`, records that report a failed start keep their exception's message.
    """
    factory = logging.getLogRecordFactory()

    def make_record(*args: Any, **kwargs: Any) -> logging.LogRecord:  # noqa: ANN401 - logging's own signature
        record = factory(*args, **kwargs)
        if not (keep_startup_failures and _STARTUP_FAILURE in str(record.msg)):
            _redact(record)
        return record

    logging.setLogRecordFactory(make_record)
    sys.excepthook = _log_uncaught
    threading.excepthook = _log_thread_failure
    sys.unraisablehook = _log_unraisable
    traceback.print_exc = _print_exc  # multiprocessing calls it when a child process fails


def log_loop_error(_loop: AbstractEventLoop, context: Mapping[str, Any]) -> None:
    """Log an error that an event loop reports, such as the exception of a task that is never awaited.

    Pass this function to `loop.set_exception_handler`.

    The default handler logs reprs of callbacks, arguments and exceptions, which may hold client text.
    """
    message = _PLAIN_WORDS.match(str(context.get("message", "")))
    error = context.get("exception")
    logger.error("event loop: %s", message.group().strip() if message else "", exc_info=error)


def describe(error: BaseException) -> str:
    """Return an exception as a traceback of files, lines, functions and types, with its causes and its group."""
    return "\n".join(_lines(error, set()))


def _redact(record: logging.LogRecord) -> None:
    if isinstance(record.msg, BaseException):
        record.msg = _type_name(record.msg)
    if isinstance(record.args, tuple):
        record.args = tuple(map(_without_message, record.args))
    elif isinstance(record.args, Mapping):
        record.args = {key: _without_message(value) for key, value in record.args.items()}
    if record.exc_info and record.exc_info[1] is not None:
        record.exc_text = describe(record.exc_info[1])
    record.exc_info = None  # formatters would render it anew


def _without_message(value: object) -> object:
    return _type_name(value) if isinstance(value, BaseException) else value


def _lines(error: BaseException, seen: set[int]) -> Iterator[str]:
    seen.add(id(error))
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is not None and id(cause) not in seen:
        yield from _lines(cause, seen)
        yield f"\n{'Which caused' if error.__cause__ else 'While it was handled'}:\n"
    yield "Traceback (most recent call last):"
    for frame, line in deque(traceback.walk_tb(error.__traceback__), maxlen=_MAX_FRAMES):
        yield f'  File "{frame.f_code.co_filename}", line {line}, in {frame.f_code.co_name}'
    yield _type_name(error)
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            yield from ("  | " + line for line in _lines(part, seen))


def _type_name(error: BaseException) -> str:
    """Return an exception's type, with its error number if it has one."""
    cls = type(error)
    name = cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
    number = error.errno if isinstance(error, OSError) else None
    return f"{name} [{errno.errorcode.get(number, number)}]" if isinstance(number, int) else name


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
    else:
        logger.critical("uncaught exception", exc_info=error)


def _print_exc(limit: int | None = None, file: "SupportsWrite[str] | None" = None, chain: bool = True) -> None:
    """Replace `traceback.print_exc`; `limit` and `chain` are ignored, as in `describe`."""
    error = sys.exception()
    (file or sys.stderr).write(f"{describe(error)}\n" if error else "")


def _log_thread_failure(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is not None:
        logger.critical("uncaught exception in thread %s", args.thread and args.thread.name, exc_info=args.exc_value)


def _log_unraisable(args: "sys.UnraisableHookArgs") -> None:
    """Log an exception that can't be raised, as in a finalizer. The object's repr may hold client text."""
    owner: Callable[..., object] | type = args.object if callable(args.object) else type(args.object)
    name = getattr(owner, "__qualname__", "")
    logger.error("exception ignored in %s", name, exc_info=args.exc_value)
