"""Causes -> plan: remedies with values, the rollback distance, the guard's next trial."""
