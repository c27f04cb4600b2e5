"""The guard in a Lightning Fabric loop."""

from trimtab.integrations.fabric.adapter import FabricGuard

__all__ = ["FabricGuard"]
