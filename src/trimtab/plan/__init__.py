"""Causes -> what to do: remedies with values, how far to roll back, and the guard's next step."""
