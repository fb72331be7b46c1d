# SPDX-License-Identifier: Apache-2.0
"""Packed weights on disk: one file per model and set of options, named MODEL-CONTENT.kwk, so that a
changed model replaces its old file. Written to a temporary name and renamed by the engine; the
least recently used files go when the folder passes its cap. Files of this folder only are mapped.
"""

from __future__ import annotations

import hashlib
import os
import pathlib

from kwker import _kwker, errors

DEFAULT_DIR = "~/.cache/kwker/packs"
DEFAULT_GB = 16.0


def folder(cache_dir) -> pathlib.Path:
    """The folder that cache_dir=True or a path means, made if missing."""
    path = pathlib.Path(DEFAULT_DIR if cache_dir is True else cache_dir).expanduser()
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    return path


def cap_bytes() -> int:
    text = os.environ.get("KWKER_PACK_CACHE_GB", "")
    try:
        gb = float(text) if text else DEFAULT_GB
    except ValueError:
        gb = -1.0
    if not 0 <= gb < 1e9:
        raise ValueError(f"KWKER_PACK_CACHE_GB is {text!r}, not a number of gigabytes")
    return int(gb * 1e9)


def path_identity(path) -> tuple[str, str]:
    """(model, content) of a directory or file: where it is; sizes, times and inodes of what is in
    it. Contents are not read."""
    root = pathlib.Path(path).resolve()
    files = sorted(root.iterdir()) if root.is_dir() else [root]
    content = hashlib.sha256()
    for f in files:
        if f.is_file():
            s = f.stat()
            content.update(f"{f.name} {s.st_size} {s.st_mtime_ns} {s.st_ino}\n".encode())
    return str(root), content.hexdigest()[:16]


def _short(*parts) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def open_cached(cache_dir, identity, options: dict, pack, **open_options):
    """The packed model, from the folder or packed now and kept there.

    identity: (model, content); options: what changes the packed bytes
    pack(): packs the model; open_options: how to open a packed file (max_ctx, sealed, …)
    """
    where = folder(cache_dir)
    stem = _short(identity[0], sorted(options.items()))
    file = where / f"{stem}-{_short(identity[1], _kwker.version)}.kwk"
    try:
        model = _kwker.Model.open(file, **open_options)
        os.utime(file)
        return model
    except (errors.ENOENT, errors.EFORMAT, errors.EUNSUPPORTED):
        pass  # none yet, damaged, or of another build: packed again
    model = pack()
    if model.describe()["packed_bytes"] > cap_bytes():
        return model
    model.save(file)
    for old in where.glob(f"{stem}-*.kwk"):
        if old != file:
            old.unlink(missing_ok=True)
    trim(where, keep=file)
    return model


def trim(where: pathlib.Path, keep: pathlib.Path | None = None) -> None:
    """Remove least recently used packs until the folder is within its cap."""
    cap = cap_bytes()
    packs = []
    for f in where.glob("*.kwk"):
        try:
            s = f.stat()
        except FileNotFoundError:
            continue  # another process was faster
        packs.append((f == keep, s.st_mtime_ns, s.st_size, f))
    total = sum(p[2] for p in packs)
    for kept, _, size, f in sorted(packs, key=lambda p: p[:2]):
        if total <= cap or kept:
            break
        f.unlink(missing_ok=True)
        total -= size
