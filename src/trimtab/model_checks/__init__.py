"""Measured on the model itself, before the first device hour.

Init, gradients, groups, precision, layouts.

Everything here needs the torch extra. Findings have the record shape of the config rules, and take
title, reason and source from the same table.
"""
