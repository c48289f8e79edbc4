"""The engine on vLLM: the only room of the server that imports vllm and torch."""
