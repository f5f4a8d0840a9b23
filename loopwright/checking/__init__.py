"""The conformance suite: equalities that a model must keep."""
