"""Traces of requests. Only `tracing` imports OpenTelemetry, and it is imported only if an endpoint is configured."""
