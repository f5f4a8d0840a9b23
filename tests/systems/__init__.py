"""The published systems, each item written again from its source in a few lines: what is equal, and what differs and says so."""
