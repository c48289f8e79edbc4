"""May it come in? Pure policy over a snapshot of the server's state, before anything is spent on a request."""
