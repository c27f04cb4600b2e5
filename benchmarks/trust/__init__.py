"""What trimtab keeps when the machine under it fails."""
