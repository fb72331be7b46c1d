# SPDX-License-Identifier: Apache-2.0
"""KwkCache: a Hugging Face DynamicCache whose keys and values live in the engine (or in kwkerd), one
sequence per batch row, one slot per column. It is the only owner of decoding state, so any number
of caches may be alive on one model.

Keys and values become torch tensors when somebody reads them. Whoever calls update(), or anything
else that the native form cannot do, turns the cache back into a plain DynamicCache in place.
"""

from __future__ import annotations

import copy
import weakref

import numpy as np
import torch
import transformers
from transformers.cache_utils import DynamicCache

from kwker import errors

try:
    from transformers.cache_utils import DynamicLayer
except ImportError as e:  # pragma: no cover
    raise ImportError(f"transformers {transformers.__version__} is too old for kwker") from e

_CROP_TAKES_LENGTH = tuple(int(p) for p in transformers.__version__.split(".")[:2]) < (5, 24)


class State:
    """The native side of a cache: sequences, and what is known about their columns."""

    def __init__(self, runner, model, batch: int):
        self.runner = runner
        self.model = weakref.ref(model)  # to compute K and V in torch where they cannot be read
        self.dtype = model.dtype
        self.seqs = [runner.new() for _ in range(batch)]
        self.columns = []  # (ids, positions, valid, computed): arrays (batch, n) in order
        self.length = 0
        self.version = 0  # grows with every change, for materialised tensors
        self.all_valid = True

    @property
    def batch(self) -> int:
        return len(self.seqs)

    def table(self, i: int) -> np.ndarray:
        """(batch, length) of the columns' ids (0; -1: unknown), positions (1), valid (2) or
        computed (3)."""
        if len(self.columns) > 1:
            self.columns = [tuple(np.concatenate(c, axis=1) for c in zip(*self.columns))]
        if not self.columns:
            return np.empty((self.batch, 0), np.int32)
        return self.columns[0][i]

    def append(self, ids, positions, valid, keep: int, embeddings=None, skip=True):
        """Compute n more columns. ids, positions: (batch, n) int32; valid: the same in booleans, or
        None: all. skip: padding on the left need not be computed. Gives the logits of the last
        `keep` columns, (batch, keep, vocab) float32."""
        batch, n = positions.shape
        if ids is None:
            ids = np.full((batch, n), -1, np.int32)
        if valid is None or valid.all():
            valid = None
        first = np.zeros(batch, int)
        if skip and embeddings is None and self.length == 0 and self.runner.can_import:
            first = self._left_padding(valid, n, keep)
        lengths = [s.length for s in self.seqs]
        keep = min(keep, n)
        logits = np.empty((batch, keep, self.runner.vocab), np.float32)
        try:
            for s, holes in zip(self.seqs, first):
                if holes:
                    s.append_holes(int(holes))
            pick = np.arange(n) >= first[:, None]
            self.runner.forward(
                self.seqs,
                (n - first).astype(np.int32),
                np.ascontiguousarray(ids[pick] if first.any() else ids.reshape(-1)),
                np.ascontiguousarray(positions[pick] if first.any() else positions.reshape(-1)),
                None if valid is None else np.ascontiguousarray(valid[pick], np.uint8),
                keep,
                logits.reshape(-1, self.runner.vocab) if keep else None,
                embeddings,
            )
        except BaseException:
            for s, length in zip(self.seqs, lengths):
                s.truncate(length)
            raise
        if valid is None:
            valid = np.ones((batch, n), bool)
        else:
            self.all_valid = False
        self.columns.append((ids, positions, valid, pick))
        self.length += n
        self.version += 1
        return logits

    def _left_padding(self, valid, n, keep) -> np.ndarray:
        """Leading masked columns of each row that need not be computed at all: nobody sees them."""
        if valid is None:
            return np.zeros(self.batch, int)
        first = np.where(valid.any(axis=1), valid.argmax(axis=1), n)
        return np.minimum(first, n - max(keep, 1))

    def set_mask(self, valid) -> None:
        """Make the columns' validity what the caller's mask says now."""
        old = self.table(2)
        if np.array_equal(old, valid):
            return
        changed = np.flatnonzero((old != valid).any(axis=0))[0]
        uncovered = valid & ~self.table(3)
        if self.runner.can_import and not uncovered.any():
            for s, row in zip(self.seqs, valid):
                s.set_valid(0, np.ascontiguousarray(row, np.uint8))
            ids, positions, _, computed = (self.table(i) for i in range(4))
            self.columns = [(ids, positions, valid, computed)]
        else:  # columns that were skipped are wanted after all: compute from there on again
            start = int(changed)
            ids, positions = self.table(0)[:, start:].copy(), self.table(1)[:, start:].copy()
            if (ids < 0).any():
                raise errors.EUNSUPPORTED("the mask changed over columns given as embeddings")
            self.truncate(start)
            self.append(ids, positions, valid[:, start:], 0, skip=False)
        self.all_valid = bool(valid.all())
        self.version += 1

    def truncate(self, length: int) -> None:
        for s in self.seqs:
            s.truncate(length)
        self.columns = [tuple(self.table(i)[:, :length] for i in range(4))] if length else []
        self.length = length
        self.version += 1

    def select(self, rows: list[int]) -> None:
        """Make the batch consist of these rows of it, in this order."""
        used, seqs = set(), []
        for r in rows:
            seqs.append(self.seqs[r].fork() if r in used else self.seqs[r])
            used.add(r)
        if self.length:
            self.columns = [tuple(self.table(i)[rows] for i in range(4))]
        self.seqs = seqs
        self.version += 1

    def fork(self) -> State:
        other = copy.copy(self)
        other.seqs = [s.fork() for s in self.seqs]
        other.columns = list(self.columns)
        return other

    def read_kv(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """(keys, values) of every layer, (batch, kv heads, length, head_dim)."""
        if not self.runner.can_import:
            return self._compute_kv()
        info = self.runner.info
        shape = (self.batch, info["n_kv_heads"], self.length, info["head_dim"])
        out = []
        for layer in range(info["n_layers"]):
            k, v = np.empty(shape, np.float32), np.empty(shape, np.float32)
            for s, k_row, v_row in zip(self.seqs, k, v):
                s.export_kv(layer, k_row, v_row)
            out.append((torch.from_numpy(k).to(self.dtype), torch.from_numpy(v).to(self.dtype)))
        return out

    def _compute_kv(self):
        model = self.model()
        if model is None or (self.table(0) < 0).any():
            raise errors.EUNSUPPORTED("keys and values of a cache in the daemon cannot be read")
        plain = DynamicCache()
        with torch.no_grad():
            model._kwker.original_forward(
                model,
                input_ids=torch.from_numpy(self.table(0).astype(np.int64)),
                attention_mask=torch.from_numpy(self.table(2).astype(np.int64)),
                position_ids=torch.from_numpy(self.table(1).astype(np.int64)),
                use_cache=True,
                logits_to_keep=1,
                **{model._kwker.cache_key: plain},
            )
        return [(layer.keys, layer.values) for layer in plain.layers]

    def write_kv(self, layers, valid) -> None:
        """Fill empty sequences from torch keys and values."""
        n = layers[0].keys.shape[-2]
        for r, s in enumerate(self.seqs):
            s.append_holes(n)
            for i, layer in enumerate(layers):
                k, v = (
                    np.ascontiguousarray(t[r].detach().float().numpy())
                    for t in (layer.keys, layer.values)
                )
                s.import_kv(i, 0, n, k, v)
            s.set_valid(0, np.ascontiguousarray(valid[r], np.uint8))
        unknown = np.full((self.batch, n), -1, np.int32)
        self.columns = [(unknown, unknown, valid, np.ones((self.batch, n), bool))]
        self.all_valid = bool(valid.all())
        self.length = n
        self.version += 1


class KwkLayer(DynamicLayer):
    """One layer of a KwkCache: reads go to the engine, writes turn the cache into a plain one."""

    def __init__(self, cache, index: int):
        self.__dict__.update(_cache=weakref.ref(cache), _index=index)

    def _read(self, which: int):
        cache = self._cache()
        if cache is None or cache._kwk is None or cache._kwk.length == 0:
            return None
        return cache._materialised()[self._index][which]

    def _write(self, name: str, value) -> None:
        cache = self._cache()
        if cache is not None:
            cache.leave()  # self is a plain DynamicLayer from here on
        setattr(self, name, value)

    keys = property(lambda self: self._read(0), lambda self, t: self._write("keys", t))
    values = property(lambda self: self._read(1), lambda self, t: self._write("values", t))

    @property
    def is_initialized(self) -> bool:
        return self.get_seq_length() > 0

    @property
    def dtype(self):
        return self._cache()._kwk.dtype

    @property
    def device(self):
        return torch.device("cpu")

    def get_seq_length(self) -> int:
        cache = self._cache()
        return 0 if cache is None or cache._kwk is None else cache._kwk.length

    def _plain(self, name):
        self._cache().leave()
        return getattr(self, name)

    def update(self, *args, **kwargs):
        return self._plain("update")(*args, **kwargs)

    def crop(self, *args):
        return self._plain("crop")(*args)

    def reset(self):
        return self._plain("reset")()

    def reorder_cache(self, *args):
        return self._plain("reorder_cache")(*args)

    def batch_repeat_interleave(self, *args):
        return self._plain("batch_repeat_interleave")(*args)

    def batch_select_indices(self, *args):
        return self._plain("batch_select_indices")(*args)


class KwkCache(DynamicCache):
    """See the module. ``_kwk`` is the native state; without it this is a plain DynamicCache."""

    _kwk: State | None = None
    _tensors = None  # (version, keys and values read at that version)

    @classmethod
    def adopt(cls, cache, state: State) -> KwkCache:
        """Turn a plain DynamicCache (what it holds has been copied to the state) into a KwkCache."""
        cache.__class__ = cls
        cache._kwk = state
        cache._tensors = None
        n_layers = state.runner.info["n_layers"]
        cache.layers = [KwkLayer(cache, i) for i in range(n_layers)]
        return cache

    def _materialised(self):
        if self._tensors is None or self._tensors[0] != self._kwk.version:
            self._tensors = (self._kwk.version, self._kwk.read_kv())
        return self._tensors[1]

    def leave(self) -> None:
        """Become a plain DynamicCache with the same keys and values."""
        if self._kwk is None:
            return
        tensors = self._materialised() if self._kwk.length else None
        for i, layer in enumerate(self.layers):
            layer.__class__ = DynamicLayer
            layer.__dict__.clear()
            DynamicLayer.__init__(layer)
            if tensors is not None:
                layer.update(*tensors[i])
        self._kwk = self._tensors = None

    def update(self, *args, **kwargs):
        self.leave()
        return super().update(*args, **kwargs)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return super().get_seq_length(layer_idx) if self._kwk is None else self._kwk.length

    def crop(self, n: int) -> None:
        """n < 0: remove that many columns; 0: nothing; n > 0 (before 5.24): cut to that length."""
        if self._kwk is None or (n > 0 and not _CROP_TAKES_LENGTH):
            return super().crop(n)
        length = self._kwk.length + n if n <= 0 else min(n, self._kwk.length)
        if length < self._kwk.length:
            self._kwk.truncate(max(length, 0))

    def reset(self):
        if self._kwk is None:
            return super().reset()
        self._kwk.truncate(0)

    def reorder_cache(self, beam_idx):
        if self._kwk is None:
            return super().reorder_cache(beam_idx)
        self._kwk.select(beam_idx.tolist())

    def batch_select_indices(self, indices):
        if self._kwk is None:
            return super().batch_select_indices(indices)
        rows = torch.arange(self._kwk.batch)[indices]
        self._kwk.select(rows.tolist())

    def batch_repeat_interleave(self, repeats: int):
        if self._kwk is None:
            return super().batch_repeat_interleave(repeats)
        self._kwk.select([r for r in range(self._kwk.batch) for _ in range(repeats)])

    def __deepcopy__(self, memo):
        if self._kwk is None:
            new = DynamicCache()
            new.__dict__.update(copy.deepcopy(self.__dict__, memo))
        else:
            new = KwkCache.adopt(DynamicCache(), self._kwk.fork())
        memo[id(self)] = new
        return new

    def __reduce_ex__(self, protocol):
        plain = DynamicCache()
        if self.get_seq_length():
            for i, layer in enumerate(self.layers):
                plain.update(layer.keys, layer.values, i)
        return (_rebuild, (plain.__dict__,))


def _rebuild(attributes) -> DynamicCache:
    cache = DynamicCache()
    cache.__dict__.update(attributes)
    return cache


def is_plain(cache, n_layers: int) -> bool:
    """Whether this cache is a plain DynamicCache that can be adopted."""
    return (
        type(cache) in (DynamicCache, KwkCache)
        and getattr(cache, "_kwk", None) is None
        and not getattr(cache, "offloading", False)
        and all(type(layer) is DynamicLayer for layer in cache.layers)
        and len(cache.layers) in (0, n_layers)
    )
