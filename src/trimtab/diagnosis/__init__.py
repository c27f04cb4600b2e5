"""Incident -> ranked causes with evidence, and the cheapest test that would tell them apart."""
