"""CRC-32, by ISA-L where it is installed: packaging/compiled[checksum] brings it.

It is the same checksum at thirty times the speed of many a zlib, which takes a sixth of what recording a row
costs (docs/benchmarks/measurements.md).
"""

try:
    from isal.isal_zlib import crc32
except ImportError:
    from zlib import crc32

__all__ = ["crc32"]
