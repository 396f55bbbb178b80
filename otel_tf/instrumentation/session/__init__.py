"""TensorFlow 1 sessions: plain ones, monitored ones, and one process per worker around a parameter server."""
