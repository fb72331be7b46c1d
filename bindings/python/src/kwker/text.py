# SPDX-License-Identifier: Apache-2.0
"""Text to token ids and back with a model's own tokenizer and chat template, without torch.

Needs the packages of `pip install kwker[text]`: tokenizers, jinja2. The tokenizer comes from a
directory, a .gguf or a .kwk file, without reading its weights.
"""

from __future__ import annotations

import datetime
import json
import os

from kwker import _kwker, errors


def _special_tokens(path) -> dict[str, str]:
    """bos_token, eos_token, … of a directory's tokenizer_config.json."""
    found = {}
    try:
        with open(os.path.join(path, "tokenizer_config.json"), encoding="utf-8") as f:
            config = json.load(f)
    except (FileNotFoundError, NotADirectoryError):
        return found
    for key, value in config.items():
        if not key.endswith("_token"):
            continue
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            found[key] = value
    return found


def _raise_exception(message):
    raise ValueError(f"the chat template refuses this conversation: {message}")


def _strftime_now(fmt):
    return datetime.datetime.now().strftime(fmt)


def _tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def compile_template(text: str):
    """A chat template in Jinja2's sandbox, with the names that Hugging Face gives it."""
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    env.filters["tojson"] = _tojson
    env.globals["raise_exception"] = _raise_exception
    env.globals["strftime_now"] = _strftime_now
    return env.from_string(text)


class Tokenizer:
    """A model's tokenizer.

    source: directory, .gguf or .kwk file
    bos, eos: ids of the special tokens, where the source does not name them (chat templates may
        use bos_token and eos_token)
    """

    def __init__(self, source, bos: int | None = None, eos: int | None = None):
        from tokenizers import Tokenizer as Native

        text, self.chat_template = _kwker.source_tokenizer(source)
        try:
            self.native = Native.from_str(text)
        except Exception as e:  # the package raises a bare Exception
            raise errors.EFORMAT(f"tokenizer of {os.fspath(source)}: {e}") from None
        self.special = _special_tokens(source)
        for key, token in (("bos_token", bos), ("eos_token", eos)):
            if key not in self.special and token is not None and token >= 0:
                name = self.native.id_to_token(token)
                if name is not None:
                    self.special[key] = name
        self._template = None

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return self.native.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, ids, skip_special_tokens: bool = True) -> str:
        return self.native.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def chat_text(self, messages, add_generation_prompt: bool = True, **variables) -> str:
        """A conversation ([{"role": …, "content": …}, …]) as the model's own template writes it."""
        if self.chat_template is None:
            raise errors.ENOENT("this model has no chat template")
        if self._template is None:
            self._template = compile_template(self.chat_template)
        return self._template.render(
            messages=messages,
            add_generation_prompt=add_generation_prompt,
            **(self.special | variables),
        )

    def chat_ids(self, messages, add_generation_prompt: bool = True, **variables) -> list[int]:
        return self.encode(self.chat_text(messages, add_generation_prompt, **variables), False)

    def stream(self, skip_special_tokens: bool = True) -> TextStream:
        return TextStream(self, skip_special_tokens)


class TextStream:
    """Token ids in, text out as soon as it is certain: no half characters, and spaces as in the
    whole text. A token is decoded together with the few before it, never with all."""

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True):
        self._decode = lambda ids: tokenizer.decode(ids, skip_special_tokens)
        self._ids = []
        self._context = 0  # ids before this one are decoded no more
        self._shown = 0  # ids whose text has been given

    def _pending(self) -> tuple[str, str]:
        window = self._ids[self._context :]
        before = self._decode(window[: self._shown - self._context])
        return before, self._decode(window)

    def put(self, token: int) -> str:
        """The text that became certain with this token, often one word, sometimes nothing."""
        self._ids.append(token)
        before, now = self._pending()
        if len(now) <= len(before) or now.endswith("\ufffd"):
            return ""
        self._context, self._shown = self._shown, len(self._ids)
        return now[len(before) :]

    def end(self) -> str:
        """What is left, even if it is half a character."""
        before, now = self._pending()
        self._context = self._shown = len(self._ids)
        return now[len(before) :]
