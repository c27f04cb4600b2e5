"""Read the data before the run and say what in it has spoiled runs elsewhere.

Streaming, without torch.
"""

from trimtab.data_scan.engine import ScanResult, ScanSettings, scan

__all__ = ["ScanResult", "ScanSettings", "scan"]
