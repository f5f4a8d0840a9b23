"""Early exits and drafts on trained models: which rule is best, what is saved."""
