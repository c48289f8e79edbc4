"""Traces of requests, exported over OTLP. Spans are made after a request has ended, from the times of its stages.

`tracer` decides when a request is received, hears events and picks the requests to export, `spans` describes their
spans, `export` makes them, `collector` sends them. Only the last two import OpenTelemetry, and they are imported only
if an endpoint is configured.
"""
