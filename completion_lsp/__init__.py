"""A language server that brings the completions of a completion server to editors that speak LSP.

Knows the client library `completion_client`, pygls and nothing of the server. A distribution of its own,
`completion-lsp`, with the command of that name.

Modules: `cli` and `check` (the command), `server` and `items` (the protocol and its messages), `completer`,
`next_edits` and `runner` (what is asked and answered, by the policies of `completion_client.editing`), `calls`,
`requests` and `link` (requests and the connection), `documents`, `cursor` and `positions` (the editor's text), `offers`
and `survival` (what became of completions), `settings`.
"""

__version__ = "0.1.0"
