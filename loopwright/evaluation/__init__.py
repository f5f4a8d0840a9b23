"""What a model is worth: the conformance suite."""
