"""Logs made by code: generators, damages, and two published runs re-typed."""
