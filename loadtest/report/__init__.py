"""What a run's parts say: figures, gates, tables, pictures, and what differs between two runs.

Everything here is made from finished parts and a scenario's criteria; nothing here knows targets, drivers or clocks.
"""
