"""MultiWorkerMirroredStrategy: every worker runs Python of its own, and they meet in collectives.

Workers agree on the run's name and compare their clocks over the coordination service's key-value store,
never by a collective; what happens inside the graph is stamped there.
"""
