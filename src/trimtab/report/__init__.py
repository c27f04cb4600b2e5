"""Render the analysis of a run: terminal, one HTML page, static pictures, a figure."""
