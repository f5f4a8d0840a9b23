"""Text from a model: streaming, and what each step would have said."""
