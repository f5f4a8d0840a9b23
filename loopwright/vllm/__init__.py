"""Our saved folders in vLLM: its scheduler and pages around our own loop."""
