"""What the front ends of one server share without Redis. Nothing on a request's path waits for another process."""
