"""Everyday faults of training: made-up runs with one fault each, benign twins, what is told."""
