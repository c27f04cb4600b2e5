"""Incident -> ranked causes with evidence, and the cheapest test that separates them."""
