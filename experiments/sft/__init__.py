"""Chat fine-tuning of a looped model that was made from a dense one, with random depth and the Jacobian penalty, by depth."""
