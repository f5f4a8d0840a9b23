"""One HTML page from numbers and figures."""
