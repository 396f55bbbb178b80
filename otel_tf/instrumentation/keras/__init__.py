"""Keras 3 and tf_keras: epochs, evaluations, predictions, and which batch a step is of."""
