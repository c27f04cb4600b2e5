"""One optimizer step: clip, update or skip, and the values read from it."""
