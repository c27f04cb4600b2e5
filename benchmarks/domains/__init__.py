"""Runs of RL, preference training, MoE, low precision, GANs, diffusion and fine-tuning, made up.

Each pathology is simulated after what a paper, a post-mortem or the documentation of a framework
says of its curves (`pathologies`), beside benign twins that look alike (`twins`). What is measured
is what a user gets who runs `trimtab inspect` on the log (`measure`).
"""
