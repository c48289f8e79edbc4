"""No log record of any library holds the message of an exception, which may quote client text."""

import io
import logging
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator

import pytest

from completion_server.core import safe_logging
from completion_server.ops import logs

TYPED = "hunter2"


@pytest.fixture
def restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Reverts the effects of `install` on this process."""
    factory = logging.getLogRecordFactory()
    hooks = ((sys, "excepthook"), (sys, "unraisablehook"), (threading, "excepthook"), (traceback, "print_exc"))
    for module, name in hooks:
        monkeypatch.setattr(module, name, getattr(module, name))
    yield
    logging.setLogRecordFactory(factory)


@pytest.fixture
def installed(restored: None) -> None:
    safe_logging.install()


@pytest.fixture
def plain() -> Iterator[io.StringIO]:
    """Collects the output of a library's own handler and formatter, such as vLLM's."""
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(logging.Formatter("%(message)s"))
    library = logging.getLogger("library")
    library.addHandler(handler)
    yield written
    library.removeHandler(handler)


def fail() -> None:
    try:
        int(TYPED)
    except ValueError as error:
        raise KeyError(TYPED) from error


def caught() -> BaseException:
    try:
        fail()
    except KeyError as error:
        error.add_note(TYPED)
        return error
    raise AssertionError


def in_a_cycle() -> BaseException:
    error = caught()
    assert error.__cause__ is not None
    error.__cause__.__cause__ = error
    return error


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (caught(), ("ValueError", "KeyError", f'File "{__file__}", line ', "in fail")),
        (BaseExceptionGroup(TYPED, [caught(), OSError(24, TYPED)]), ("  | KeyError", "  | OSError [EMFILE]")),
        (in_a_cycle(), ("ValueError", "KeyError")),
    ],
    ids=["chain", "group", "cycle"],
)
def test_an_exception_is_logged_as_types_and_frames(
    plain: io.StringIO, error: BaseException, shown: tuple[str, ...]
) -> None:
    logging.getLogger("library").error("request %s failed", "r1", exc_info=error)
    assert TYPED not in plain.getvalue()
    assert "request r1 failed" in plain.getvalue()
    assert [part for part in shown if part not in plain.getvalue()] == []
    assert plain.getvalue().count("KeyError\n") == 1


@pytest.mark.usefixtures("installed")
def test_exceptions_among_the_arguments_are_named_by_their_type(plain: io.StringIO) -> None:
    library = logging.getLogger("library")
    library.error("failed: %s", ValueError(TYPED))
    library.error("failed: %(error)s", {"error": ValueError(TYPED)})
    library.error(ValueError(TYPED))
    assert plain.getvalue() == "failed: ValueError\nfailed: ValueError\nValueError\n"


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_the_servers_own_handler_needs_no_installation(log_format: str, capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    handlers = root.handlers[:]
    try:
        logs.configure(logs.LogSettings(format=log_format))  # type: ignore[arg-type]
        logging.getLogger("completion_server.test").error("failed", exc_info=caught())
    finally:
        root.handlers[:] = handlers
    written = capsys.readouterr().err
    assert TYPED not in written
    assert "KeyError" in written
    assert "in fail" in written


UNCAUGHT = f"""
import asyncio, logging, multiprocessing, threading
from completion_server.core import safe_logging
logging.basicConfig()
safe_logging.install()

def fail(text):
    raise ValueError(text)

class Finalized:
    def __del__(self):
        fail("{TYPED}")

async def fail_in_a_task():
    fail("{TYPED}")

def fail_in_a_process():
    safe_logging.install()
    fail("{TYPED}")

async def main():
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(safe_logging.log_loop_error)
    loop.call_soon(fail, "{TYPED}")
    loop.create_task(fail_in_a_task())
    await asyncio.sleep(0.01)

threading.Thread(target=fail, args=("{TYPED}",), name="worker").start()
Finalized()
process = multiprocessing.get_context("fork").Process(target=fail_in_a_process, name="child")
process.start()
process.join()
asyncio.run(main())
fail("{TYPED}")
"""


def test_uncaught_exceptions_are_logged_without_their_messages() -> None:
    done = subprocess.run([sys.executable, "-c", UNCAUGHT], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert TYPED not in done.stdout + done.stderr
    for part in (
        "uncaught exception in thread worker", "exception ignored in Finalized.__del__", "event loop: Exception in",
        "event loop: Task exception was never retrieved", "uncaught exception\n",
        "Process child:\nTraceback",
    ):  # fmt: skip
        assert part in done.stderr
    assert done.stderr.count("ValueError") == 6


@pytest.mark.usefixtures("restored")
def test_a_failed_start_keeps_its_message_if_configured(plain: io.StringIO) -> None:
    safe_logging.install(keep_startup_failures=True)
    logging.getLogger("library").error("EngineCore failed to start.", exc_info=ValueError("max_model_len"))
    logging.getLogger("library").error("EngineCore hit an error.", exc_info=ValueError(TYPED))
    assert "max_model_len" in plain.getvalue()
    assert TYPED not in plain.getvalue()
