"""What the pages say of the inside of looped models: stages of inference, small trained models, orbits."""
