"""INT8 copies of a model folder, made with and without calibration data.

Knows weights; must not know tasks or the engine.
"""
