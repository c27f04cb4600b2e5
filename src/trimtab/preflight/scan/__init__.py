"""Read the data before the run and say what in it has spoiled runs elsewhere; streaming, without torch."""

from trimtab.preflight.scan.engine import ScanResult, ScanSettings, scan

__all__ = ["ScanResult", "ScanSettings", "scan"]
