"""The gRPC front end: messages, limits, identity, statuses, health. The only package of the server that knows gRPC."""
