"""The cluster of `otel-tf demo`: real processes on this machine, each under a wrong clock of its own."""
