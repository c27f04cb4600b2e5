"""Free-form text logs."""
