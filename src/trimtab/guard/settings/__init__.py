"""The settings in force, step by step: what changed, who announced it, and how to put it back."""
