"""The `completion-server` command: argv and environment to configuration to run; nothing else."""

from completion_server.cli import main

if __name__ == "__main__":
    main()
