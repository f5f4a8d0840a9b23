"""The shipped recipes: one YAML file per published experiment, plus the demo's two."""
