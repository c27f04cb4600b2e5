"""What people do by hand between steps."""
