# SPDX-License-Identifier: Apache-2.0
"""python -m kwker.bench: the protocol's mathematics against a plain float64 computation, whole runs
on the real model of 260 thousand parameters, rows that fail, stand-ins for the user's llama.cpp."""

import json
import math
import pathlib
import shutil
import stat
import struct
import sys
import xml.dom.minidom

import numpy as np
import pytest

from kwker import _kwker
from kwker.bench import cli, gguf_head, launch, machine, plot, protocol, store
from kwker.bench.formats import Format, llama_class, parse_list

CTX = 32


# ---- the mathematics ---------------------------------------------------------------------------


def plain_log_softmax(row):
    """Float64, one number after another."""
    top = max(float(v) for v in row)
    norm = math.log(math.fsum(math.exp(float(v) - top) for v in row))
    return [float(v) - top - norm for v in row]


def plain_report(ids, n_ctx, n_chunks, bos, logits_of, original_of):
    """The figures of a row as the protocol's definition reads. logits_of(tokens): (n, vocab)."""
    nll, base, kl, same = [], [], [], []
    for c in range(n_chunks):
        chunk = list(ids[c * n_ctx : (c + 1) * n_ctx])
        read = [bos, *chunk[1:]] if bos is not None else chunk
        q_rows, p_rows = logits_of(read), original_of(read)
        for at in range(n_ctx // 2, n_ctx - 1):
            q, p = plain_log_softmax(q_rows[at]), plain_log_softmax(p_rows[at])
            nll.append(-q[chunk[at + 1]])
            base.append(-p[chunk[at + 1]])
            kl.append(math.fsum(math.exp(a) * (a - b) for a, b in zip(p, q)))
            same.append(q.index(max(q)) == p.index(max(p)))
    n = len(nll)
    assert n == n_chunks * (n_ctx - 1 - n_ctx // 2)

    def mean_error(x):
        mean = math.fsum(x) / n
        return mean, math.sqrt((math.fsum(v * v for v in x) / n - mean * mean) / (n - 1))

    (m, e), (d, de) = mean_error(nll), mean_error([a - b for a, b in zip(nll, base)])
    (k, ke) = mean_error(kl)
    return {
        "ppl": math.exp(m), "ppl_err": math.exp(m) * e, "ppl_ratio": math.exp(d),
        "ppl_ratio_err": math.exp(d) * de, "kl": k, "kl_err": ke, "top1": 100 * sum(same) / n,
    }  # fmt: skip


def test_scores_of_random_logits_equal_the_plain_float64_computation():
    rng = np.random.default_rng(5)
    chunks = protocol.cut(rng.integers(0, 37, 3 * 12 + 7), 12)
    assert chunks.shape == (3, 12)
    q = rng.normal(0, 4, (3, 12, 37)).astype(np.float32)
    p = (q + rng.normal(0, 0.5, q.shape)).astype(np.float32)
    keep = protocol.counted(12)
    parts = [
        protocol.score(q[i, 6:11], protocol.targets(c), p[i, 6:11]) for i, c in enumerate(chunks)
    ]
    base = [protocol.score(p[i, 6:11], protocol.targets(c)).nll for i, c in enumerate(chunks)]
    got = protocol.summary(protocol.Scores.join(parts), np.concatenate(base))
    turn = iter(range(3))
    originals = iter(range(3))
    want = plain_report(
        chunks.ravel(), 12, 3, None, lambda _: q[next(turn)], lambda _: p[next(originals)]
    )
    assert keep == 5 and got["n_scored"] == 15
    for key, value in want.items():
        assert got[key] == pytest.approx(value, rel=1e-9), key


def test_a_model_diverges_from_itself_by_exactly_nothing():
    logits = np.random.default_rng(1).normal(0, 9, (40, 300)).astype(np.float32)
    s = protocol.score(logits, np.zeros(40, int), logits)
    assert s.kl.tolist() == [0.0] * 40 and s.same.all()


def test_chunks_drop_the_tail_and_bos_replaces_the_first_token():
    ids = np.arange(50)
    chunks = protocol.cut(ids, 16)
    assert chunks.shape == (3, 16) and chunks[2, -1] == 47
    assert protocol.cut(ids, 16, 2).shape == (2, 16) and protocol.cut(ids, 16, 99).shape == (3, 16)
    assert protocol.inputs(chunks[1], 7).tolist() == [7, *range(17, 31)]
    assert protocol.inputs(chunks[1], None)[0] == 16
    assert protocol.targets(chunks[1]).tolist() == list(range(25, 32))
    assert protocol.counted(512) == 255 and protocol.counted(2048) == 1023
    with pytest.raises(ValueError, match="31 tokens.*at least 32"):
        protocol.cut(range(31), 16)


def test_logits_that_are_not_finite_are_an_error_and_not_a_figure():
    logits = np.zeros((2, 5), np.float32)
    logits[1, 3] = np.nan
    with pytest.raises(ValueError, match="row 1 are not finite"):
        protocol.score(logits, np.array([0, 0]))


def test_the_file_for_llama_perplexity_holds_the_log_probabilities_within_its_step(tmp_path):
    rng = np.random.default_rng(2)
    chunks = rng.integers(0, 33, (2, 8)).astype(np.int32)
    logits = rng.normal(0, 6, (2, 3, 33)).astype(np.float32)
    logits[1, 2, 7] = -1e9  # a forbidden token does not cost the others their digits
    w = store.LlamaWriter(tmp_path / "base", chunks, 33)
    for c in logits:
        w.add(c)
    w.close()
    raw = (tmp_path / "base").read_bytes()
    assert raw[:8] == b"_logits_" and struct.unpack("<Iii", raw[8:20]) == (8, 33, 2)
    assert np.frombuffer(raw, np.int32, 16, 20).tolist() == chunks.ravel().tolist()
    body = raw[20 + 64 :]
    assert len(body) == store.llama_bytes(2, 3, 33) == 6 * (2 * 34 + 8)
    for i, row in enumerate(logits.reshape(6, 33)):
        at = i * (2 * 34 + 8)
        step, low = struct.unpack("<ff", body[at : at + 8])
        stored = low + step * np.frombuffer(body, np.uint16, 33, at + 8)
        want = protocol.log_softmax(row[None])[0]
        clipped = np.maximum(want, want.max() - 48)
        assert np.abs(stored - clipped).max() <= 0.51 * step + 1e-5
        assert step <= 48 / 65535 * 1.001


# ---- formats, files, machine -------------------------------------------------------------------


def test_formats_are_parsed_and_unknown_words_named():
    assert [f.name for f in parse_list(None, calib=False)] == [
        "own", "float32", "bf16", "int8", "int4"]  # fmt: skip
    assert parse_list(None, calib=True)[-1] == Format("int4", ("calib",))
    assert parse_list("int4+mix8+calib,int8,int8", True)[0].name == "int4+calib+mix8"
    options = Format.parse("int4+calib+mix8").pack_options(calib=[1, 2])
    assert (options.precision, options.mix_bits, options.calib) == ("int4", 8, [1, 2])
    assert Format.parse("int4+mix6").pack_options().mix_bits == 6
    Format.parse("int4+mix6").pack_options().check()
    with pytest.raises(ValueError, match="'int5' is not one of"):
        parse_list("int5", False)
    with pytest.raises(ValueError, match="'warm' is not one of"):
        parse_list("int4+warm", False)


def test_classes_of_llama_files_say_what_is_rounded():
    assert llama_class("F32", "f32", "f32") == dict.fromkeys(
        ("weights", "activations", "kv"), "float32 ="
    )
    assert llama_class("BF16")["activations"] == "bf16 ≈"
    assert llama_class("Q4_K_M", "q8_0", "f16") == {
        "weights": "Q4_K_M ≈",
        "activations": "int8 ≈",
        "kv": "q8_0/f16 ≈",
    }


def gguf_bytes(tensors=(("token_embd.weight", 0), ("output.weight", 64)), vocab=512, data=160):
    """The head of a file, and that many zeros of tensor data."""

    def text(s):
        return struct.pack("<Q", len(s)) + s.encode()

    keys = [
        text("general.file_type") + struct.pack("<II", 4, 15),
        text("tokenizer.ggml.add_bos_token") + struct.pack("<I?", 7, True),
        text("tokenizer.ggml.scores") + struct.pack("<IIQ", 9, 6, 3) + bytes(12),
        text("tokenizer.ggml.tokens")
        + struct.pack("<IIQ", 9, 8, vocab)
        + b"".join(text(f"t{i}") for i in range(vocab)),
    ]
    out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)) + b"".join(keys)
    for name, offset in tensors:
        out += text(name) + struct.pack("<IQQIQ", 2, 4, 4, 0, offset)
    return out + bytes(-len(out) % 32 + data)


def test_the_head_of_a_gguf_file_gives_kind_vocabulary_and_bytes_of_a_token(tmp_path):
    f = tmp_path / "m.gguf"
    f.write_bytes(gguf_bytes())
    h = gguf_head.read(f)
    assert (h.kind, h.vocab, h.add_bos) == ("Q4_K_M", 512, True)
    assert h.weight_bytes == 96, "an embedding table beside a head is not read for a token"
    f.write_bytes(gguf_bytes((("token_embd.weight", 0), ("blk.0.attn_q.weight", 64))))
    assert gguf_head.read(f).weight_bytes == 160


def test_a_gguf_file_cut_anywhere_in_its_head_is_refused(tmp_path):
    whole = gguf_bytes(vocab=3)
    f = tmp_path / "m.gguf"
    head = len(whole) - 160 - 32
    for n in [*range(head), head]:
        f.write_bytes(whole[:n])
        with pytest.raises(ValueError):
            gguf_head.read(f)
    damaged = bytearray(whole)
    damaged[8:16] = b"\xff" * 8
    f.write_bytes(damaged)
    with pytest.raises(ValueError, match="count"):
        gguf_head.read(f)


def test_the_memory_is_read_at_a_plausible_speed(figure):
    speed = machine.read_bandwidth(2, total=1 << 27, seconds=0.1)
    assert 2e8 < speed < 2e12
    figure(f"memory read by 2 threads: {speed / 1e9:.1f} GB/s")


# ---- plots -------------------------------------------------------------------------------------


def test_the_front_holds_what_no_other_point_beats():
    at = [(5, 5), (1, 9), (4, 5), (2, 9), (9, 1), (3, 6), (8, 7)]
    points = [plot.Point(x, y, f"{x}", "kwker") for x, y in at]
    assert [(p.x, p.y) for p in plot.front(points)] == [(1, 9), (3, 6), (4, 5), (9, 1)]


def test_ticks_are_round_numbers_within_their_range():
    assert plot.linear_ticks(0, 1) == [0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert plot.linear_ticks(95, 540) == [100, 200, 300, 400, 500]
    assert plot.log_ticks(90, 220) == pytest.approx([100, 150, 200])
    assert plot.log_ticks(0.004, 0.3) == pytest.approx([0.005, 0.01, 0.02, 0.05, 0.1, 0.2])


def test_plots_are_well_formed_and_escape_their_labels():
    points = [plot.Point(540, 0, "a<b>&", "kwker"), plot.Point(100, 0.08, '"q"', "llama", 0.01)]
    for svg in (plot.scatter(points, "t<", "x", "y", True), plot.bars(points, "t&")):
        doc = xml.dom.minidom.parseString(svg)
        texts = [t.firstChild.data for t in doc.getElementsByTagName("text")]
        assert {"a<b>&", '"q"'} <= set(texts)
    assert len(xml.dom.minidom.parseString(plot.scatter(points, "", "", "", True))
               .getElementsByTagName("circle")) == 2  # fmt: skip
    assert plot.scatter([], "t", "x", "y", True) == plot.bars([], "t") == ""


# ---- whole runs --------------------------------------------------------------------------------


def story_tokenizer(tok512):
    """The stories model's published tokenizer as a tokenizer.json that starts texts with <s>."""
    from tokenizers import Tokenizer, models, normalizers, processors

    raw, at, vocab = tok512.read_bytes(), 4, []
    while at < len(raw):
        score, n = struct.unpack("<fi", raw[at : at + 8])
        vocab.append((raw[at + 8 : at + 8 + n].decode("utf-8", "replace").replace(" ", "▁"), score))
        at += 8 + n
    vocab[:3] = [("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0)]
    t = Tokenizer(models.Unigram(vocab, unk_id=0, byte_fallback=True))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    t.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    return t


@pytest.fixture(scope="module")
def story(shared, stories, tmp_path_factory):
    """(model directory with a tokenizer, text file, the text's ids with BOS)"""
    where = tmp_path_factory.mktemp("story")
    shutil.copytree(stories, where / "model")
    t = story_tokenizer(shared / "data" / "tok512.bin")
    t.save(str(where / "model" / "tokenizer.json"))
    text = (
        "Once upon a time, there was a little girl named Lily. She loved to play outside in the "
        "park. One day, she saw a big, red ball. She wanted to play with it, but it was too high.\n"
        "Lily's mom said, \"Lily, let's go to the park.\" Lily was sad and didn't know what to do. "
        'She said, "I want to play with your ball, but I can\'t find it."\n'
    )
    (where / "text").write_text(text)
    return where / "model", where / "text", t.encode(text.removesuffix("\n")).ids


def script(path, body):
    path.write_text(f"#!{sys.executable}\n{body}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


LLAMA_BENCH = """
import json, sys
a = dict(zip(sys.argv[1::2], sys.argv[2::2]))
open({log!r}, "a").write(f"{{a['-m'][-6:]}} -t {{a['-t']}} -r {{a['-r']}}\\n")
same = dict(build_commit="abc1234", build_number=77, type_k="f16", type_v="f16")
print(json.dumps([
    same | dict(n_prompt=int(a["-p"]), n_gen=0, avg_ts=110.0, samples_ts=[100.0, 120.0]),
    same | dict(n_prompt=0, n_gen=int(a["-n"]), avg_ts=10.0, samples_ts=[10.0]),
]))
"""
LLAMA_PERPLEXITY = """
import struct, sys
base = sys.argv[sys.argv.index("--kl-divergence-base") + 1]
magic, n_ctx, vocab, n = struct.unpack("<8sIii", open(base, "rb").read(20))
assert magic == b"_logits_" and (n_ctx, vocab) == ({ctx}, 512), (n_ctx, vocab)
print("Mean PPL(Q)                   :   5.500000 ±   0.250000")
print("Mean PPL(base)                :   5.000000 ±   0.200000")
print("Mean PPL(Q)/PPL(base)         :   1.100000 ±   0.010000")
print("Mean    KLD:   0.080000 ±   0.001000")
print("Same top p: 82.500 ± 0.300 %")
"""


def run(*argv, expect=0):
    assert cli.main([str(a) for a in argv]) == expect


@pytest.fixture(scope="module")
def full_run(story, tmp_path_factory, request):
    """One run with everything: (JSON report, Markdown, HTML, order of llama-bench's launches)"""
    model, text, _ = story
    where = tmp_path_factory.mktemp("run")
    (where / "a.gguf").write_bytes(gguf_bytes())
    (where / "b.gguf").write_bytes(b"junk")
    log = where / "log"
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled(), open(where / "md", "w+") as out:
        stdout, sys.stdout = sys.stdout, out
        try:
            run(
                "--llm", model, "--text", text, "--ctx", CTX, "--chunks", 3, "-t", 1, "-p", 24,
                "-n", 5, "-r", 2, "--rounds", 2, "--formats", "own,float32,int8,int4+gptq",
                "--gguf", where / "a.gguf", where / "b.gguf",
                "--llama-bench", script(where / "lb", LLAMA_BENCH.format(log=str(log))),
                "--llama-perplexity", script(where / "lp", LLAMA_PERPLEXITY.format(ctx=CTX)),
                "--json", where / "json", "--html", where / "html", "--work-dir", where / "work",
            )  # fmt: skip
        finally:
            sys.stdout = stdout
    assert list((where / "work").iterdir()) == [], "nothing is left behind"
    read = {n: (where / n).read_text() for n in ("json", "md", "html", "log")}
    return json.loads(read["json"]), read["md"], read["html"], read["log"].split("\n")[:-1]


def rows_of(report):
    return {r["format"]: r for r in report["formats"]}


def engine_logits(model):
    """logits_of(tokens) by one step of the engine."""

    def logits_of(tokens):
        out = np.empty((len(tokens), 512), np.float32)
        n = np.array([len(tokens)], np.int32)
        positions = np.arange(len(tokens), dtype=np.int32)
        model.forward(
            [model.seq()], n, np.array(tokens, np.int32), positions, None, len(tokens), out
        )
        return out

    return logits_of


def test_every_figure_of_a_run_is_that_of_the_plain_computation(full_run, story):
    report, _, _, _ = full_run
    rows, (path, _, ids) = rows_of(report), story
    original = engine_logits(_kwker.Model.open(path, precision="float32"))
    for name in ("float32", "int8"):
        this = engine_logits(_kwker.Model.open(path, precision=name))
        want = plain_report(ids, CTX, 3, 1, this, original)
        for key, value in want.items():
            assert rows[name][key] == pytest.approx(value, rel=1e-6, abs=1e-12), (name, key)
    assert report["protocol"]["bos"] == 1 and report["protocol"]["n_tokens"] == len(ids)
    assert rows["float32"]["n_scored"] == 3 * 15 and rows["int8"]["kl"] > 0


def test_the_report_has_the_agreed_fields(full_run):
    report, _, _, _ = full_run
    rows = rows_of(report)
    ours = [name for name in rows if name != "transformers"]
    assert ours == ["float32", "int8", "int4+gptq", "llama.cpp a", "llama.cpp b"]
    for name in ("float32", "int8"):
        r = rows[name]
        for key in ("ppl", "ppl_err", "ppl_ratio", "kl", "top1", "bytes", "pp_ts", "tg_ts", "pp_sd",
                    "tg_sd", "weight_bytes", "ttft_s", "start_s", "pack_s", "cached_load_s",
                    "peak_rss", "pack_peak_rss", "gb_s"):  # fmt: skip
            assert isinstance(r[key], (int, float)) and math.isfinite(r[key]), (name, key)
        assert r["error"] is None and len(r["pp_samples"]) == len(r["tg_samples"]) == 4
        assert r["peak_rss"] > 10e6 and r["start_s"] > r["cached_load_s"] > 0
    assert rows["float32"]["own"] is True and rows["float32"]["kl"] == 0
    assert rows["float32"]["class"] == dict.fromkeys(("weights", "activations", "kv"), "float32 =")
    assert rows["int8"]["class"]["weights"] == "int8 ≈"
    assert rows["int8"]["class"]["activations"] == "int8 ≈"
    assert rows["int8"]["bytes"] < rows["float32"]["bytes"]
    assert {"cpu", "isa", "threads", "read_gb_s", "memory_bytes"} <= report["machine"].keys()
    assert {"kwker", "python", "numpy", "llama.cpp"} <= report["versions"].keys()
    assert report["command"].startswith("python -m kwker.bench --llm ")


def test_the_original_through_transformers_is_in_the_same_table(full_run):
    rows = rows_of(full_run[0])
    hf, ours = rows["transformers"], rows["float32"]
    assert hf["error"] is None and hf["class"]["activations"] == "float32 ="
    assert hf["ppl"] == pytest.approx(ours["ppl"], rel=1e-4) and 0 <= hf["kl"] < 1e-6
    assert hf["top1"] == 100 and hf["pp_ts"] > 0 and hf["tg_ts"] > 0 and hf["load_s"] > 0


def test_a_row_that_cannot_be_measured_says_why_and_the_others_stay(full_run):
    report, markdown, page, _ = full_run
    rows = rows_of(report)
    assert "gptq" in rows["int4+gptq"]["error"] and rows["int4+gptq"]["ppl"] is None
    assert "not a GGUF file" in rows["llama.cpp b"]["error"]
    for text in (markdown, page):
        assert "gptq" in text and "not a GGUF file" in text
    assert rows["llama.cpp a"]["error"] is None


def test_the_users_llama_cpp_is_measured_in_turn_with_the_same_threads(full_run):
    report, _, _, log = full_run
    r = rows_of(report)["llama.cpp a"]
    assert log == ["a.gguf -t 1 -r 2"] * 2
    assert (r["ppl"], r["ppl_err"], r["ppl_ratio"], r["kl"], r["top1"]) == (
        5.5,
        0.25,
        1.1,
        0.08,
        82.5,
    )
    assert r["pp_samples"] == [100, 120, 100, 120] and r["tg_ts"] == 10
    assert r["class"] == {"weights": "Q4_K_M ≈", "activations": "int8 ≈", "kv": "f16 ≈"}
    assert r["bytes"] == len(gguf_bytes()) and r["gb_s"] == pytest.approx(96 * 10 / 1e9)
    assert report["versions"]["llama.cpp"] == "abc1234 (77)"


def test_markdown_is_one_table_with_every_row_and_its_class(full_run):
    _, markdown, _, _ = full_run
    table = [line for line in markdown.split("\n") if line.startswith("|")]
    assert len({line.count("|") for line in table}) == 1 and len(table) >= 2 + 5
    assert any("float32 (the model's own)" in line and "float32 = / " in line for line in table)
    assert "PPL" in table[0] and "pp24 t/s" in table[0] and "tg5 t/s" in table[0]


def test_the_page_needs_nothing_else_and_plots_bytes_against_quality(full_run):
    report, _, page, _ = full_run
    assert "src=" not in page and "http" not in page.replace("http://www.w3.org/2000/svg", "")
    svgs = [s.split("</svg>")[0] + "</svg>" for s in ("<svg" + p for p in page.split("<svg")[1:])]
    assert len(svgs) == 4
    for svg in svgs:
        xml.dom.minidom.parseString(svg)
    assert "int8" in svgs[0] and "llama.cpp a" in svgs[0]
    assert str(report["protocol"]["n_chunks"]) in page


def test_the_originals_logits_kept_or_computed_again_give_the_same_figures(story, tmp_path, capsys):
    model, text, _ = story
    reports = []
    for gb in ("8", "0"):
        run(
            "--llm", model, "--text", text, "--ctx", CTX, "--chunks", 3, "--no-speed",
            "--no-transformers", "--formats", "own,int8", "--store-gb", gb,
            "--json", tmp_path / "json", "--work-dir", tmp_path,
        )  # fmt: skip
        reports.append(json.loads((tmp_path / "json").read_text()))
    assert reports[0]["protocol"]["store_bytes"] == 3 * 15 * 512 * 4
    assert reports[1]["protocol"]["store_bytes"] == 0
    assert reports[0]["formats"] == reports[1]["formats"]
    own = rows_of(reports[0])["float32"]
    assert own["own"] and own["kl"] == 0 and own["kl_max"] == 0 and own["ppl_ratio"] == 1
    assert own["pp_ts"] is None


# ---- what goes wrong ---------------------------------------------------------------------------


def test_a_process_that_is_killed_is_a_reason(tmp_path, monkeypatch):
    killed = script(tmp_path / "p", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    monkeypatch.setattr(launch.sys, "executable", killed)
    with pytest.raises(launch.Failed, match="killed by SIGKILL"):
        launch.run_child({"task": "speed"})


def test_an_error_in_a_child_comes_back_in_its_words(tmp_path):
    request = {"task": "load", "source": str(tmp_path / "none"), "format": "own", "max_ctx": 64}
    with pytest.raises(launch.Failed, match="ENOENT"):
        launch.run_child(request)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("import sys; print('bad model', file=sys.stderr); sys.exit(3)", "exit code 3: bad model"),
        ("print('not json')", "printed something else"),
        ("print('[]')", "measured nothing"),
    ],
)
def test_a_llama_bench_that_fails_is_a_reason(tmp_path, body, reason):
    from kwker.bench import llamacpp

    with pytest.raises(launch.Failed, match=reason):
        llamacpp.bench(script(tmp_path / "lb", body), "m.gguf", 1, 8, 8, 1)


def test_a_name_that_is_no_path_and_not_in_the_hubs_cache_is_a_clear_error(tmp_path, capsys):
    (tmp_path / "text").write_text("words")
    run("--llm", "nobody/nothing-at-all", "--text", tmp_path / "text", expect=1)
    assert "nobody/nothing-at-all" in capsys.readouterr().err
    run("--llm", tmp_path / "gone", "--text", tmp_path / "text", expect=1)
    assert "no such file" in capsys.readouterr().err


def test_a_text_too_short_for_the_protocol_is_a_clear_error(story, tmp_path, capsys):
    (tmp_path / "text").write_text("Once upon a time")
    run("--llm", story[0], "--text", tmp_path / "text", "--work-dir", tmp_path, expect=1)
    assert "needs at least 1024" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "word"),
    [
        (["--llm", "x"], "--text is needed"),
        (["--llm", "x", "--text", __file__, "--gguf", "f"], "--gguf needs"),
        (["--llm", "x", "--text", __file__, "--formats", "int5"], "int5"),
        (["--llm", "x", "--text", __file__, "--formats", "int4+calib"], "--calib"),
        (["--llm", "x", "--text", __file__, "--reps", "0"], "--reps is 0"),
        (["--llm", "x", "--text", "/none/there"], "no such file"),
        (["--llm", "x", "--text", __file__, "--json", "/none/there"], "no such folder"),
    ],
)
def test_arguments_that_cannot_work_are_named(argv, word, capsys):
    with pytest.raises(SystemExit) as e:
        cli.main(argv)
    assert e.value.code == 2 and word in capsys.readouterr().err


def test_the_module_runs_as_a_program():
    assert (pathlib.Path(cli.__file__).parent / "__main__.py").exists()
    out, _, _ = launch.run_program([sys.executable, "-m", "kwker.bench", "--help"])
    assert "--llama-perplexity" in out and "--chunks" in out


def test_weights_from_a_quantised_file_are_pointed_out(tmp_path):
    from kwker.bench import report
    from kwker.bench.session import Plan, Session

    (tmp_path / "m.gguf").write_bytes(gguf_bytes())
    plan = Plan(str(tmp_path / "m.gguf"), None, tmp_path, [], 1, transformers=False, quality=False)
    session = Session(plan)
    session.prepare()
    session.run()
    made = report.build(session, machine.facts(1, bandwidth=False), machine.versions(), ["--x y"])
    assert made["formats"] == [] and made["command"] == "python -m kwker.bench '--x y'"
    assert "quantised file (Q4_K_M)" in report.markdown(made)
