"""The command line: names the commands and imports the module of the one that runs.

The imports are lazy, because those of a server take a second and `--help` needs none of them.
"""

import importlib

import click

from completion_server import __version__


class LazyCommand(click.Command):
    """Stands for a command in its group until the command is needed; then imports its module."""

    def __init__(self, name: str, target: str, short_help: str) -> None:
        """Name the command, its MODULE:ATTRIBUTE and the text in the list of commands."""
        super().__init__(name, short_help=short_help)
        self._target = target

    def load(self) -> click.Command:
        """Import the command's module and return the command."""
        module, _, attribute = self._target.partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: object
    ) -> click.Context:
        """Return a context of the real command, which click then invokes."""
        return self.load().make_context(info_name, args, parent, **extra)


class PluginCommand(LazyCommand):
    """A command of a package above the server, which an entry point of the distribution names."""

    def __init__(self, name: str, short_help: str) -> None:
        """Name the command and the text in the list of commands."""
        super().__init__(name, name, short_help)

    def load(self) -> click.Command:
        """Find the command by its entry point and return it."""
        from importlib.metadata import entry_points  # as slow as the rest of the command line

        found = entry_points(group="completion_server.commands", name=self._target)
        if not found:
            raise click.ClickException(f"{self._target}: not installed; install completion-server again")
        command = next(iter(found)).load()
        assert isinstance(command, click.Command)
        return command


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def main() -> None:
    """Serve inline code completions, and ask a server for them.

    \b
    Start a server, then ask it for the text at line 10 of a file:
        completion-server serve --config deploy/local/server.toml
        completion-server complete app.py:10
    """


for _name, _target, _short_help in (
    ("check-config", "completion_server.server_commands:check_config", "Check a configuration without a model."),
    ("complete", "completion_server.client.complete_command:complete", "Stream the completion at a cursor position."),
    (
        "drain",
        "completion_server.client.operator_commands:drain",
        "Let a server finish its accepted requests, then stop it.",
    ),
    ("keys", "completion_server.key_commands:keys", "Give out, list and revoke API keys."),
    ("probe", "completion_server.client.probe_command:probe", "Ask servers again and again, for alerts."),
    (
        "profile",
        "completion_server.client.profile_command:profile",
        "Show how the time of requests divides into stages.",
    ),
    ("serve", "completion_server.server_commands:serve", "Run a server until SIGTERM or Ctrl-C."),
    (
        "speculation",
        "completion_server.client.speculation_command:speculation",
        "Show or change the number of draft tokens (K).",
    ),
    ("status", "completion_server.client.operator_commands:status", "Show what a running server is doing."),
    ("top", "completion_server.client.top.command:top", "Show the latency and the load of servers, live."),
    ("usage", "completion_server.ops.records.usage_command:usage", "Add up usage records by tenant, user and day."),
):
    main.add_command(LazyCommand(_name, _target, _short_help))
main.add_command(PluginCommand("plan", "Calculate GPUs and cost from the number of seats."))
