"""Reads single keys from a terminal while an event loop runs."""

import asyncio
import os
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_MAX_BYTES = 64


@contextmanager
def reading_keys(on_key: Callable[[str], None]) -> Iterator[None]:
    """Call `on_key` with each key; needs a running loop. Does nothing if standard input is no terminal.

    The terminal shows no typed characters meanwhile, and is as before afterwards. Ctrl-C stays a signal.
    """
    if not sys.stdin.isatty():
        yield
        return
    descriptor = sys.stdin.fileno()
    loop, before = asyncio.get_running_loop(), termios.tcgetattr(descriptor)

    def read() -> None:
        typed = os.read(descriptor, _MAX_BYTES)
        if not typed:  # the terminal is gone
            loop.remove_reader(descriptor)
        for key in typed.decode(errors="replace"):
            on_key(key)

    tty.setcbreak(descriptor)
    loop.add_reader(descriptor, read)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
