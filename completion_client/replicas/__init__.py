"""Several replicas, of one region or of many, as one server: a user's requests go to one replica.

`replica_set` is the entry point, one user's view of `completion_client.regions`; `view` says which replica to try and
what its answers mean; `attempts` sends one request, `stream` those of a session, on its `legs`, each a `leg`.
"""
