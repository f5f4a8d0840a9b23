"""What the pages say of models trained from scratch on text: ASURA, and text that runs out."""
