"""`completion-server serve` with injected faults: a request with a prefix that has "fault=PART;" fails in PART.

The part raises with the request's text in its exception's message, as careless code would. Run as a module, it takes
the arguments of `serve`. All loggers write all levels.
"""

import asyncio
import logging
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn

from completion_server.api.rpc import convert
from completion_server.api.rpc.decoder import Decoder
from completion_server.core.events import RequestEnded
from completion_server.engine.scripted.engine import ScriptedEngine
from completion_server.ops import logs
from completion_server.ops.metrics import Metrics
from completion_server.requests.mailbox import Mailbox
from completion_server.text.prompt.builder import PromptBuilder
from completion_server.text.rules.text import TextRules

PARTS = ("prompt", "engine", "rules", "mailbox", "observer", "convert", "feedback", "decoder")
"""Besides them, "background" raises in a task, a callback, a thread and a finalizer, and "crash" kills the engine."""
_texts: dict[str, str] = {}
"""The text of each request that has a prompt, by id."""
_newest = [""]


def fail_in(part: str, text: str) -> None:
    """Raise with `text` in the message, twice over, where `text` names the part."""
    if f"fault={part};" in text:
        try:
            raise KeyError(text)
        except KeyError as error:
            globals()[f"fail_{part}"](text, error)


def _make_failure(part: str) -> None:
    """Define fail_PART; its name in a traceback shows which fault was logged."""
    code = f"def fail_{part}(text, cause):\n    raise ValueError(text) from cause\n"
    exec(compile(code, __file__, "exec"), globals())


def _fail_in_the_background(text: str) -> None:
    if "fault=background;" not in text:
        return

    class Finalized:
        def __del__(self) -> None:
            raise ValueError(text)

    async def fail_task() -> NoReturn:
        raise ValueError(text)

    def fail_callback(typed: str) -> NoReturn:
        raise ValueError(typed)

    loop = asyncio.get_running_loop()
    loop.call_soon(fail_callback, text)
    loop.create_task(fail_task())  # noqa: RUF006 - so that nothing awaits it
    threading.Thread(target=fail_callback, args=(text,)).start()
    Finalized()


def _crash(engine: ScriptedEngine, job: Any, _sink: object) -> None:
    text = _texts.get(job.id, "")
    if "fault=crash;" in text:
        engine.crash(text)


def _before(owner: Any, name: str, check: Callable[..., None]) -> None:
    """Have `check` called with the arguments of a function before the function."""
    function = getattr(owner, name)

    def checked(*args: Any, **kwargs: Any) -> Any:
        check(*args)
        return function(*args, **kwargs)

    setattr(owner, name, checked)


def _note_prompt(_builder: object, request: Any) -> None:
    _texts[request.id] = _newest[0] = request.prefix
    fail_in("prompt", request.prefix)
    _fail_in_the_background(request.prefix)


def _prefix_of(event: object) -> str:
    return event.request.prefix if isinstance(event, RequestEnded) else ""


def inject() -> None:
    """Put the faults in place."""
    for part in PARTS:
        _make_failure(part)
    _before(PromptBuilder, "build", _note_prompt)
    _before(ScriptedEngine, "submit", lambda _engine, job, _sink: fail_in("engine", _texts.get(job.id, "")))
    _before(ScriptedEngine, "submit", _crash)
    _before(TextRules, "feed", lambda *_: fail_in("rules", _newest[0]))
    _before(Mailbox, "put_nowait", lambda *_: fail_in("mailbox", _newest[0]))
    _before(Metrics, "handle", lambda _metrics, event: fail_in("observer", _prefix_of(event)))
    _before(convert, "request_of", lambda message, *_: fail_in("convert", message.prefix))
    _before(convert, "feedback_of", lambda message, *_: fail_in("feedback", message.session_id))
    _before(Decoder, "__call__", lambda _decoder, data: fail_in("decoder", data.decode("latin-1")))
    configure = logs.configure

    def configure_all(settings: logs.LogSettings) -> None:
        configure(settings)
        logging.getLogger().setLevel(logging.DEBUG)
        logging.getLogger(__name__).debug("control of this log")

    logs.configure = configure_all


if __name__ == "__main__":
    from completion_server.cli import main

    inject()
    sys.stderr.write("control of standard error\n")
    main(["serve", *sys.argv[1:]])
