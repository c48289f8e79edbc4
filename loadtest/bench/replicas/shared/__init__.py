"""What replicas share in Redis: newest-wins, the completion cache, life without it, and its cost."""
