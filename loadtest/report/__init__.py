"""Reports of a run: figures, gates, tables, charts, and the comparison of two runs.

Everything is made from finished statistics and a scenario's criteria; nothing knows targets, drivers or clocks.
"""
