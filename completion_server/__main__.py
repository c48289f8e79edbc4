"""The `completion-server` command: argv and environment to configuration to run; nothing else.

The engine's processes run this module first, too, because multiprocessing gives them the server's main module. From
then on they end when the server ends. They need nothing of the command line, which is imported only to run it.
"""

import sys

from completion_server.engine.vllm.process import end_with_parent


def main() -> None:
    """Run the command line."""
    from completion_server.cli import main as run

    run()


end_with_parent()

if __name__ == "__main__":
    # As a script: multiprocessing leaves the `__main__` of a package out.
    sys.modules[__name__].__spec__ = None
    main()
