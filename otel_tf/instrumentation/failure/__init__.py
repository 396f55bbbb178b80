"""What is kept of a step that failed: which op it was, and the tensors it worked on."""
