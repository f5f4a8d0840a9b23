"""What is trained for: losses and penalties."""
