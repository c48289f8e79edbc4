"""Traces of requests, exported over OTLP. Spans are made after a request has ended, from the times of its stages.

`sampling` decides when a request is received, `tracer` hears events and picks the requests to export, `spans` describes
their spans, `export` makes and sends them. Only `export` imports OpenTelemetry, and only if an endpoint is configured.
"""
