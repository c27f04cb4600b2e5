"""Adapters for the trainers that people use.

Each module imports its package only when it is used.
"""
