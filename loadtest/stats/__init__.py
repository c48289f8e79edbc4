"""Counters and histograms of a run, which add up over workers, slices and machines."""
