"""The explorer: a page on which a loop can be watched, and the numbers that it draws."""
