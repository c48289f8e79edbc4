"""The engine behind the server: one interface, vLLM behind it, and a scripted one for tests."""
