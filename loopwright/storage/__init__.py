"""Files and folders that are written whole, and manifests that say what a folder held."""
