"""Loaded by the fork server alone.

What DeepSpeed imports at the first engine is imported once, here.
"""

from tests.integrations.deepspeed_jobs import import_deepspeed

import_deepspeed()

import deepspeed.runtime.zero.muon.muon_optimizer  # noqa: E402, F401

import trimtab.integrations.deepspeed.adapter  # noqa: E402, F401
