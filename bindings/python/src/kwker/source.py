# SPDX-License-Identifier: Apache-2.0
"""From what the user has (a torch model, a directory, a GGUF or packed file) to a runner of it, in
this process or in kwkerd, with every option of KwkDecoder and install().
"""

from __future__ import annotations

import dataclasses
import os

from kwker import _kwker, errors, pack_cache
from kwker.calibrate import Importance, Progress
from kwker.runners import DaemonRunner, LocalRunner

PRECISIONS = (None, "float32", "f16", "bf16", "int8", "balanced", "int4")
INTEGER = ("int8", "balanced", "int4")


@dataclasses.dataclass(frozen=True)
class PackOptions:
    """How the weights are stored."""

    precision: str | None = None
    mix_bits: int | None = None
    calib: object = None
    gptq: bool = False
    cache_dir: object = None

    def check(self) -> None:
        if self.precision not in PRECISIONS:
            known = ", ".join(p for p in PRECISIONS if p)
            raise ValueError(f"precision is {self.precision!r}, not None or one of {known}")
        if self.gptq:
            raise errors.EUNSUPPORTED(
                "gptq=True is not supported yet: the int4 format it would fit is not settled"
            )
        if self.mix_bits is not None:
            if self.mix_bits not in (6, 8):
                raise ValueError(f"mix_bits is {self.mix_bits!r}, not 6 or 8")
            if self.precision != "int4":
                raise ValueError(f"mix_bits belongs to precision='int4', not {self.precision!r}")
        if self.calib is not None and self.precision not in INTEGER:
            raise ValueError(f"calib fits integer weights; precision is {self.precision!r}")


def is_torch_model(source) -> bool:
    return not isinstance(source, (str, bytes, os.PathLike))


def _open(source, options: PackOptions, **more):
    """Pack the source now, with a progress line on a terminal."""
    importance = None
    if options.calib is not None:
        importance = Importance(_open_float(source, more.get("max_ctx", 0)), options.calib)
    bar = Progress("packing weights")
    kwargs = dict(
        precision=options.precision,
        mix_bits=options.mix_bits or 0,
        progress=bar,
        importance=importance,
        **more,
    )
    try:
        if is_torch_model(source):
            from kwker import torch_model

            return torch_model.open_model(source, **kwargs)
        return _kwker.Model.open(source, **kwargs)
    finally:
        bar.end()


def _open_float(source, max_ctx: int):
    if is_torch_model(source):
        from kwker import torch_model

        return torch_model.open_model(source, max_ctx=max_ctx)
    return _kwker.Model.open(source, precision="float32", max_ctx=max_ctx)


def _calib_mark(calib) -> str | None:
    if calib is None:
        return None
    from kwker.calibrate import texts_of

    h = 0
    for piece in texts_of(calib, 1 << 30):
        h = _kwker.hash_buffer(piece, h)
    return f"{h:016x}"


def _identity(source) -> tuple[str, str]:
    if not is_torch_model(source):
        return pack_cache.path_identity(source)
    from kwker import torch_model

    name = getattr(source.config, "_name_or_path", "")
    return f"{name} {torch_model.config_text(source)}", torch_model.content_hash(source)


def open_native(source, options: PackOptions, max_ctx: int, sealed: bool = False):
    """The packed model in this process: from the cache folder if there is one, else packed now."""
    options.check()
    if not options.cache_dir:
        return _open(source, options, max_ctx=max_ctx, sealed=sealed)
    precision = "int8" if options.precision == "balanced" else options.precision
    marks = {
        "precision": precision,
        "mix_bits": options.mix_bits,
        "calib": _calib_mark(options.calib),
    }
    return pack_cache.open_cached(
        options.cache_dir,
        _identity(source),
        marks,
        lambda: _open(source, options, max_ctx=max_ctx, sealed=sealed),
        max_ctx=max_ctx,
        sealed=sealed,
    )


def open_runner(source, options: PackOptions, max_cache_len: int, daemon=None):
    """A runner of the source. daemon: None here; True the default kwkerd; else its address."""
    if daemon is None or daemon is False:
        return LocalRunner(open_native(source, options, max_cache_len))
    address = None if daemon is True else daemon
    _kwker.Client(address).close()  # nothing is packed for a daemon that is not there
    model = open_native(source, options, 0, sealed=True)
    return DaemonRunner.hand_over(address, model, max_cache_len)
