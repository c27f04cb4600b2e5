"""Training state: captured, restored, saved."""
