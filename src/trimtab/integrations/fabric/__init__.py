"""Lightning Fabric: `FabricGuard` in a loop that a user writes."""

from trimtab.integrations.fabric.adapter import FabricGuard

__all__ = ["FabricGuard"]
