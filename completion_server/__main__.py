"""The `completion-server` command.

Multiprocessing gives the engine's processes the server's main module, so they run this module first. It makes them end
when the server ends. They need nothing of the command line, which is imported only to run it.
"""

import os
import sys


def main() -> None:
    """Run the command line."""
    from completion_server.cli import main as run

    run()


if "COMPLETION_SERVER_ENGINE_PARENT" in os.environ:  # set for the engine's processes alone
    from completion_server.engine.vllm.process import end_with_parent

    end_with_parent()

if __name__ == "__main__":
    # As a script: multiprocessing leaves the `__main__` of a package out.
    sys.modules[__name__].__spec__ = None
    main()
