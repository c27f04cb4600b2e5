"""The training loop: startup, the steps, what follows each, shutdown."""
