"""Several replicas as one server, for editors that connect to them directly.

`stream` is a Session stream that moves between replicas; `replica_set` is the entry point. Which replica is chosen is
decided in `completion_client.routing`.
"""
