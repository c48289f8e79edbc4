"""Several replicas of the server: routing, newest-wins, the caches, and life without Redis."""
