"""Branches that separate causes: what each changes is put in force, measured, and taken back."""
