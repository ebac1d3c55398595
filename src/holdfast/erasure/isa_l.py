"""The few functions of Intel's ISA-L that the code needs, called without copies and without Python's global lock.

Pure; runs anywhere. pyeclib brings ISA-L and loads it into the process for its `isa_l_rs_cauchy`: the same library, the
same matrix and the same arithmetic as called here, reached by the name it was loaded under. pyeclib itself copies every
stripe three times on the way (docs/decisions/0011-calling-isa-l.md). Where the library cannot be reached by name,
`library()` is None and everything goes through pyeclib and zlib, with the same results.
"""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Sequence
from functools import cache

import numpy as np
from pyeclib.ec_iface import ECDriver

Buffer = bytes | bytearray | memoryview
Bytes = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]

_NAMES = ("libisal-pyeclib.so.2", "libisal.so.2")
_TABLE_BYTES = 32
"""ISA-L expands each coefficient of a matrix into a table of this size."""


def address(data: Buffer | Bytes) -> int:
    """Return where these bytes lie in memory; valid while the caller holds them."""
    view = data if isinstance(data, np.ndarray) else np.frombuffer(data, dtype=np.uint8)
    return int(view.ctypes.data)


class IsaL:
    """ISA-L, loaded."""

    def __init__(self, library: ctypes.CDLL) -> None:
        """Bind the functions; `AttributeError` where one is missing."""
        pointer, size = ctypes.c_void_p, ctypes.c_int
        self._crc32 = library.crc32_gzip_refl
        self._crc32.argtypes, self._crc32.restype = [ctypes.c_uint32, pointer, ctypes.c_uint64], ctypes.c_uint32
        self._cauchy = library.gf_gen_cauchy1_matrix
        self._cauchy.argtypes, self._cauchy.restype = [pointer, size, size], None
        self._invert = library.gf_invert_matrix
        self._invert.argtypes, self._invert.restype = [pointer, pointer, size], size
        self._tables = library.ec_init_tables
        self._tables.argtypes, self._tables.restype = [size, size, pointer, pointer], None
        self._encode = library.ec_encode_data
        self._encode.argtypes, self._encode.restype = [size, size, size, pointer, pointer, pointer], None

    def crc32(self, data: Buffer, start: int) -> int:
        """Return the CRC-32 of zlib."""
        view = np.frombuffer(data, dtype=np.uint8)
        found: int = self._crc32(start, view.ctypes.data, view.size)
        return found

    def cauchy_matrix(self, rows: int, columns: int) -> Bytes:
        """Return the encoding matrix: identity on top, Cauchy below; any `columns` of its rows can be inverted."""
        matrix = np.zeros((rows, columns), dtype=np.uint8)
        self._cauchy(matrix.ctypes.data, rows, columns)
        return matrix

    def inverse(self, matrix: Bytes) -> Bytes:
        """Return the inverse over GF(2**8) of a square matrix that has one."""
        scratch, inverse = np.ascontiguousarray(matrix).copy(), np.zeros_like(matrix)
        if self._invert(scratch.ctypes.data, inverse.ctypes.data, len(matrix)):
            raise ArithmeticError("the matrix has no inverse")
        return inverse

    def product(self, one: Bytes, other: Bytes) -> Bytes:
        """Return the product over GF(2**8) of two matrices, made with the encoder itself."""
        columns = np.ascontiguousarray(other)
        result = np.zeros((len(one), other.shape[1]), dtype=np.uint8)
        width = other.shape[1]
        sources = [address(columns) + row * width for row in range(len(columns))]
        targets = [address(result) + row * width for row in range(len(result))]
        self.multiply(self.tables(one), width, sources, targets)
        return result

    def tables(self, matrix: Bytes) -> Bytes:
        """Return the matrix in the form that `multiply` takes."""
        rows, columns = matrix.shape
        tables = np.zeros(_TABLE_BYTES * rows * columns, dtype=np.uint8)
        self._tables(columns, rows, np.ascontiguousarray(matrix).ctypes.data, tables.ctypes.data)
        return tables

    def multiply(self, tables: Bytes, length: int, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Write each target block of `length` bytes as its matrix row times the source blocks, all given by address."""
        inputs = (ctypes.c_void_p * len(sources))(*sources)
        outputs = (ctypes.c_void_p * len(targets))(*targets)
        self._encode(length, len(sources), len(targets), tables.ctypes.data, inputs, outputs)


@cache
def library() -> IsaL | None:
    """Return ISA-L if pyeclib has it, it can be reached, and it agrees with zlib; else None."""
    loader = ECDriver(ec_type="isa_l_rs_cauchy", k=2, m=1)  # the library is in the process while this is open
    for name in _NAMES:
        try:
            found = IsaL(ctypes.CDLL(name))
        except (OSError, AttributeError):
            continue
        probe = bytes(range(256)) * 5
        if all(found.crc32(probe[:size], 7) == zlib.crc32(probe[:size], 7) for size in (1, 15, 64, 1000, 1280)):
            loader.close()
            return found
    return None
