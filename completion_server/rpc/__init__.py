"""The wire: messages to core requests and back, status codes, limits, health. The only server room that knows gRPC."""
