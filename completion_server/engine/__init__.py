"""The engine behind the server: its interface, its supervision, and two implementations."""
