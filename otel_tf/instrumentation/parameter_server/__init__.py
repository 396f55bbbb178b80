"""ParameterServerStrategy: seams in the ClusterCoordinator, and each worker's own clock.

Workers and parameter servers run nothing of ours, just `tf.distribute.Server`: what happens on them is
stamped by ops inside the graph and fetched by the coordinator.
"""
