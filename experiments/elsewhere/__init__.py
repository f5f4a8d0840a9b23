"""Runs of the studies on another machine with a GPU and no network: what must be carried there, and what is run."""
