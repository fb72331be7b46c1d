# SPDX-License-Identifier: Apache-2.0
"""What this CPU can do."""

from kwker import _kwker


def decoder_available() -> bool:
    """Whether this CPU runs :class:`kwker.decode.KwkDecoder` at all."""
    return _kwker.isa() is not None


def isa() -> str:
    """The instruction set in use: "ref", "avx2", "avx512" or "neon" (``KWKER_ISA`` lowers it)."""
    return _kwker.isa()


def threads() -> int:
    """Threads of the engine's team: ``KWKER_THREADS``, else the physical cores of this process."""
    return _kwker.threads()


def set_threads(n: int) -> None:
    """Set the number of threads, 0 for the default. Results do not depend on it."""
    _kwker.set_threads(n)
