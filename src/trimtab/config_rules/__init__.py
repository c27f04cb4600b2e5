"""The rules of `trimtab preflight`, published presets, and the advice that follows from them.

`preflight.preflight_config` reads configs and returns what the rules find; `lint.lint` applies the
rules to one `Settings` record. Nothing is imported here: `trimtab scan` needs only the arithmetic
in `planning`, and loading every rule would take longer than reading a small file.
"""
