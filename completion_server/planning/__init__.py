"""Plans capacity and cost: from seats to requests, from requests to GPUs, from GPUs to dollars for a completion.

Pure arithmetic on stated assumptions, except for the command and the picture. Knows no server: imports only `core`.
"""
