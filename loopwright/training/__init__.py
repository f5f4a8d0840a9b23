"""Training: recipes, depth rules, objectives, the loop and its checkpoints."""
