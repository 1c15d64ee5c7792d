"""CRC-32, computed by ISA-L if it is installed (packaging/compiled[checksum] brings it).

The checksum is the same, at thirty times the speed of many zlib builds, with which it takes a sixth of the
cost of recording a row (docs/benchmarks/measurements.md).
"""

try:
    from isal.isal_zlib import crc32
except ImportError:
    from zlib import crc32

__all__ = ["crc32"]
