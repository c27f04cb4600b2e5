"""The guard in a loop written with megatron-core.

Data parallel, fp32, its optimizer and scheduler.
"""

from trimtab.integrations.megatron.adapter import CoreOptimizer, CoreScheduler, MegatronGuard

__all__ = ["CoreOptimizer", "CoreScheduler", "MegatronGuard"]
