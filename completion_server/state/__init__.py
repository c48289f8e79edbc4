"""What replicas share in Redis, and the completion cache. Nothing on a request's path waits for Redis."""
