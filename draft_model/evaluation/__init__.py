"""How good a model, a pair of models, is: held-out loss, probes, and how much of a draft its target accepts."""
