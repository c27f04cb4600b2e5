"""Adapters for the trainers that people use; each module imports its package only when it is used."""
