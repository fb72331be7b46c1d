# SPDX-License-Identifier: Apache-2.0
"""The few facts of a GGUF file that a comparison needs: what kind of file it is, the size of its
vocabulary, whether a BOS token is wanted, how many bytes of weights a token reads. Reads the head
of the file only; a damaged one is a ValueError.
"""

from __future__ import annotations

import dataclasses
import os
import struct

# The struct code of each type of value, by its number.
SCALARS = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd"))
# Names of general.file_type.
KINDS = {
    **dict(enumerate(("F32", "F16", "Q4_0", "Q4_1"))),
    **dict(enumerate(("Q8_0", "Q5_0", "Q5_1", "Q2_K", "Q3_K_S", "Q3_K_M", "Q3_K_L"), 7)),
    **dict(enumerate(("Q4_K_S", "Q4_K_M", "Q5_K_S", "Q5_K_M", "Q6_K"), 14)),
    **{25: "IQ4_NL", 30: "IQ4_XS", 32: "BF16", 38: "MXFP4"},
}
STRING, ARRAY = 8, 9
MANY = 1 << 24  # no count in the head of a real file is greater


@dataclasses.dataclass
class Head:
    file_bytes: int
    vocab: int | None  # None: not said
    add_bos: bool | None
    kind: str  # "Q4_K_M", …
    weight_bytes: int  # all tensors, an embedding table that is not also the head left out


class _Cursor:
    def __init__(self, file, size: int):
        self.file = file
        self.size = size

    def number(self, code: str):
        raw = self.file.read(struct.calcsize(code))
        try:
            return struct.unpack("<" + code, raw)[0]
        except struct.error:
            raise ValueError("the file ends in its head") from None

    def count(self) -> int:
        n = self.number("Q")
        if n > MANY:
            raise ValueError(f"a count of {n} in its head")
        return n

    def text(self) -> str:
        n = self.count()
        raw = self.file.read(n)
        if len(raw) < n:
            raise ValueError("the file ends in its head")
        return raw.decode("utf-8", "replace")

    def skip(self, n: int) -> None:
        if self.file.tell() + n > self.size:
            raise ValueError("the file ends in its head")
        self.file.seek(n, os.SEEK_CUR)

    def value(self, kind: int):
        """A scalar or a string; of an array only its length."""
        if kind == STRING:
            return self.text()
        if kind != ARRAY:
            return self.number(self._code(kind))
        inner, n = self.number("I"), self.count()
        if inner == STRING:
            for _ in range(n):
                self.skip(self.count())
        else:
            self.skip(n * struct.calcsize(self._code(inner)))
        return n

    def _code(self, kind: int) -> str:
        if kind not in SCALARS:
            raise ValueError(f"a value of type {kind} in its head")
        return SCALARS[kind]


def read(path) -> Head:
    size = os.path.getsize(path)
    with open(path, "rb") as f:
        c = _Cursor(f, size)
        if f.read(4) != b"GGUF":
            raise ValueError("not a GGUF file")
        c.number("I")  # version
        n_tensors, n_keys = c.count(), c.count()
        keys = {}
        for _ in range(n_keys):
            key = c.text()
            keys[key] = c.value(c.number("I"))
        offsets = {}
        for _ in range(n_tensors):
            name = c.text()
            n_dims = c.number("I")
            c.skip(8 * min(n_dims, MANY) + 4)  # dimensions, type
            offsets[name] = c.number("Q")
        align = keys.get("general.alignment", 32)
        if not isinstance(align, int) or not 1 <= align <= MANY:
            raise ValueError(f"an alignment of {align}")
        data = -(-f.tell() // align) * align
    sizes, end = {}, size - data
    for name, at in sorted(offsets.items(), key=lambda t: t[1], reverse=True):
        sizes[name], end = end - at, at
    table = sizes.get("token_embd.weight", 0) if "output.weight" in sizes else 0
    kind = keys.get("general.file_type")
    return Head(
        kind=KINDS.get(kind, "?" if kind is None else f"file type {kind}"),
        file_bytes=size,
        vocab=keys.get("tokenizer.ggml.tokens"),
        add_bos=keys.get("tokenizer.ggml.add_bos_token"),
        weight_bytes=sum(sizes.values()) - table,
    )
