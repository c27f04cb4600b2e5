"""Scan training data before the run for what has spoiled runs elsewhere.

Streaming, in bounded memory, without torch. `scan` reads files and directories and returns sources
and findings.
"""

from trimtab.data_scan.engine import Progress, ScanResult, ScanSettings, scan
from trimtab.data_scan.findings import DataFinding
from trimtab.data_scan.sources import ReadSettings

__all__ = ["DataFinding", "Progress", "ReadSettings", "ScanResult", "ScanSettings", "scan"]
