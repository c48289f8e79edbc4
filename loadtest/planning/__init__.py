"""Plans capacity and cost: from seats to requests, from requests to GPUs, from GPUs to dollars for a completion.

Pure arithmetic on stated assumptions, except for the command and the picture. The command is `completion-server plan`,
found by an entry point of this distribution. It needs no extra; only the picture imports matplotlib.
"""
