"""What moves the parameters: optimisers, schedules, averages, and which parameters train."""
