"""Text that runs out: the same number of tokens read from less and less text, looped beside plain."""
