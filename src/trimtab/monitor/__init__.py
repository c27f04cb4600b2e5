"""Follow a log that grows, and notify people."""
