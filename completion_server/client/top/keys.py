"""Reads single keys from a terminal while an event loop runs."""

import asyncio
import os
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

_MAX_BYTES = 64


@contextmanager
def reading_keys(on_key: Callable[[str], None], on_gone: Callable[[], None]) -> Iterator[None]:
    """Call `on_key` with each key, `on_gone` if the terminal goes away; needs a running loop.

    Does nothing if standard input is no terminal. The terminal shows no typed characters meanwhile, and is as before
    afterwards. Ctrl-C stays a signal.
    """
    if not sys.stdin.isatty():
        yield
        return
    descriptor = sys.stdin.fileno()
    loop, before = asyncio.get_running_loop(), termios.tcgetattr(descriptor)

    def read() -> None:
        try:
            typed = os.read(descriptor, _MAX_BYTES)
        except OSError:  # what Linux reports of a terminal that is gone
            typed = b""
        if not typed:
            loop.remove_reader(descriptor)
            on_gone()
        for key in typed.decode(errors="replace"):
            on_key(key)

    tty.setcbreak(descriptor)
    loop.add_reader(descriptor, read)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
        with suppress(termios.error):  # the terminal may be gone
            termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
