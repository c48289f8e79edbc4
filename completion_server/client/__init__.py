"""The commands that talk to a running server: arguments, rendering and exit status. Imports no part of the server."""
