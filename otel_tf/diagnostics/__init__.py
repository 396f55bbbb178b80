"""What is said and kept of a failure: messages taken apart, summaries of tensors. No TensorFlow in here."""
