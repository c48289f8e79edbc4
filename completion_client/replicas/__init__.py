"""One user's requests at the best of the servers of `completion_client.regions`, of which there may be only one.

`view` says which server to try and what its answers mean; `attempts` sends one request, `stream` those of a session, on
its `legs`, each a `leg`; `reports` sends feedback without one.
"""
