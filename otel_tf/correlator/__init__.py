"""Causal order of a run: sources, edges, clocks, repair, order, answers, sinks."""
