"""The systems that the server is compared with: the bare engine, a bare gRPC server, `vllm serve`."""
