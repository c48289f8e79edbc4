"""The wire: bytes to requests and parts of answers to bytes, over gRPC and over HTTP; who calls."""
