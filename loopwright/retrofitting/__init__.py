"""A dense model made into a looped one."""
