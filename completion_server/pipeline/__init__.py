"""The path of a request: the one entry point, a request and its answer, generations from prompts and an engine."""
