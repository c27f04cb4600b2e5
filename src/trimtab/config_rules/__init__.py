"""The rules of `trimtab preflight`, the published presets.

And the advice that follows from them.
"""
