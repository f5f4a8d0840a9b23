"""One pass: where its tokens stand, what it carries from layer to layer, which logits it answers with, what it returns."""
