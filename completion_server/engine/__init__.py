"""The engine behind the server: one interface, a real vLLM behind it, and a scripted one for tests and capacity runs."""
