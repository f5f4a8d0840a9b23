"""Plain functions on tensors that training, evaluation and analysis share."""
