# SPDX-License-Identifier: Apache-2.0
"""Where a model is and how its own tokenizer reads a text, as the perplexity protocol wants it."""

from __future__ import annotations

import os

from kwker.bench.launch import Failed

FILES = ("*.json", "*.safetensors", "tokenizer.model", "*.jinja")


def locate(name: str) -> str:
    """A local path: itself, or a model of the Hugging Face hub, from its cache or fetched."""
    if os.path.exists(name):
        return name
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise Failed(f"{name}: no such file or directory")
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise Failed(
            f"{name} is neither a path here nor, without the package huggingface_hub, a name that "
            "can be looked up; give the model's directory or .gguf file"
        ) from None
    reason = None
    for local in (True, False):
        try:
            return snapshot_download(name, allow_patterns=FILES, local_files_only=local)
        except Exception as e:  # the hub's own exceptions share no base class
            reason = e
    first = str(reason).strip().splitlines()
    raise Failed(f"{name} is not a path here, not in the cache of Hugging Face, and could not be "
                 f"fetched: {first[0] if first else type(reason).__name__}")  # fmt: skip


class Text:
    """A model's tokenizer.

    bos: the token that it puts in front of a text, None: none
    """

    def __init__(self, source):
        from kwker.text import Tokenizer

        try:
            self._tokenizer = Tokenizer(source)
        except FileNotFoundError as e:
            raise Failed(f"{e}: the text cannot be read without (--no-quality times alone)") from e
        native = self._tokenizer.native
        if hasattr(native, "encode_special_tokens"):
            native.encode_special_tokens = True  # "<s>" in a text is a text, as llama.cpp has it
        bare = self._tokenizer.encode("a", False)
        full = self._tokenizer.encode("a", True)
        at = next((i for i in range(len(full)) if full[i : i + len(bare)] == bare), len(full))
        if at > 1:
            raise Failed(
                f"the tokenizer puts {at} tokens in front of a text; the protocol knows of one"
            )
        self.bos = full[0] if at == 1 else None

    def ids(self, path) -> list[int]:
        """The whole file, one BOS in front if the model wants one; nothing behind."""
        with open(path, "rb") as f:
            text = f.read().decode("utf-8", "replace").removesuffix("\n")  # as llama.cpp does
        ids = self._tokenizer.encode(text, False)
        return ids if self.bos is None else [self.bos, *ids]
