"""What a run tells: its log, experiment trackers, the progress bar, the card of its checkpoints."""
