"""Several replicas of the server: newest-wins, the caches, and life without Redis."""
