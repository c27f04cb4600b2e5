"""Ten kinds of models, faults and harmless changes in each: what the guard recovers and harms."""
