# SPDX-License-Identifier: Apache-2.0
"""Tokenizer, chat template and incremental text, without torch."""

import json

import pytest

import kwker
from kwker import chat
from kwker.text import Tokenizer, compile_template

pytest.importorskip("tokenizers")
TEMPLATE = (
    "{% for m in messages %}{{ bos_token }}<{{ m.role }}>{{ m['content'] }}{{ eos_token }}\n"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A directory with a byte-level tokenizer: one token for each byte, and <s>, </s>."""
    from tokenizers import AddedToken, decoders, models, pre_tokenizers
    from tokenizers import Tokenizer as Native

    path = tmp_path_factory.mktemp("tok")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    native = Native(models.BPE({c: i + 2 for i, c in enumerate(alphabet)}, []))
    native.add_special_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    native.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    native.decoder = decoders.ByteLevel()
    native.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(
        json.dumps(
            {"bos_token": {"content": "<s>"}, "eos_token": "</s>", "chat_template": TEMPLATE}
        )
    )
    (path / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 300}))
    return path


def test_text_goes_to_ids_and_back(source):
    t = Tokenizer(source)
    ids = t.encode("héllo <s>")
    assert t.decode(ids, skip_special_tokens=False) == "héllo <s>" and t.decode(ids) == "héllo "


def test_the_chat_template_is_rendered_with_its_special_tokens(source):
    t = Tokenizer(source)
    messages = [{"role": "user", "content": "hi"}]
    assert t.chat_text(messages) == "<s><user>hi</s>\n<assistant>"
    assert t.chat_text(messages, add_generation_prompt=False) == "<s><user>hi</s>\n"
    assert t.decode(t.chat_ids(messages), False) == t.chat_text(messages)


def test_templates_run_in_a_sandbox_and_have_hugging_faces_helpers():
    run = compile_template
    assert run("{{ strftime_now('%Y') | length }}").render() == "4"
    assert run("{{ {'b': 1, 'a': 'é<'} | tojson }}").render() == '{"b": 1, "a": "é<"}'
    assert (
        run(
            "{% for i in [1,2,3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}"
        ).render()
        == "1"
    )
    with pytest.raises(ValueError, match="no system"):
        run("{{ raise_exception('no system') }}").render()
    for escape in (
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__ }}",
    ):
        with pytest.raises(Exception, match="(?i)unsafe|undefined|not safely"):
            run(escape).render(messages=[])


def test_a_stream_gives_whole_characters_as_soon_as_they_are_certain(source):
    t = Tokenizer(source)
    text = "Größe: 3 € 😀 ok"
    stream, parts = t.stream(), []
    for i in t.encode(text):
        parts.append(stream.put(i))
    assert "".join(parts) + stream.end() == text
    assert all("\ufffd" not in p for p in parts) and parts[0] == "G"
    half = t.encode("€")[:2]
    stream = t.stream()
    assert [stream.put(i) for i in half] == ["", ""] and "\ufffd" in stream.end()
    assert stream.end() == ""


def test_missing_tokenizers_are_typed_errors(tmp_path):
    with pytest.raises(FileNotFoundError):
        Tokenizer(tmp_path / "nowhere")
    with pytest.raises(kwker.errors.ENOENT):
        Tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(kwker.Error):
        Tokenizer(tmp_path)


@pytest.mark.parametrize(
    "words, want",
    [
        ([], {}),
        (["--sample"], dict(do_sample=True, temperature=0.8, top_p=0.95, seed=None)),
        (["--seed", "0"], dict(do_sample=True, temperature=0.8, top_p=0.95, seed=0)),
        (["--temperature", "0.5"], dict(do_sample=True, temperature=0.5, top_p=0.95, seed=None)),
        (["--top-p", "0.9"], dict(do_sample=True, temperature=0.8, top_p=0.9, seed=None)),
    ],
)
def test_chat_samples_when_any_sampling_option_is_given(words, want):
    args = chat.parse(["--source", "x", "--prompt", "y", *words])
    assert chat.sampling(args) == want
