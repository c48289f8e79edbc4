"""Runs the command by `python -m completion_lsp`."""

from completion_lsp.cli import main

if __name__ == "__main__":
    main()
