# SPDX-License-Identifier: Apache-2.0
"""The user's documents: every code block runs word for word and prints the output shown."""

import ast
import contextlib
import io

import pytest
import torch


def marked_blocks(lines):
    """(code, output) of blocks between a line "Python…" and "Output"."""
    i = 0
    while i < len(lines):
        if not lines[i].startswith("Python"):
            i += 1
            continue
        end = lines.index("Output", i)
        after = next((j for j in range(end, len(lines)) if not lines[j].strip()), len(lines))
        yield "\n".join(lines[i + 1 : end]), "\n".join(lines[end + 1 : after])
        i = after


def parses(lines):
    try:
        ast.parse("\n".join(lines))
    except SyntaxError:
        return False
    return True


def plain_block(lines):
    """The one block of a document without marks: from the first import on, as long as it parses;
    its last paragraph is the output."""
    start = next(i for i, line in enumerate(lines) if line.startswith("import "))
    end = max(i for i in range(start + 1, len(lines) + 1) if parses(lines[start:i]))
    paragraphs = "\n".join(lines[start:end]).strip().split("\n\n")
    yield "\n\n".join(paragraphs[:-1]), paragraphs[-1]


def blocks(path):
    lines = path.read_text().splitlines()
    found = list(marked_blocks(lines))
    return found or list(plain_block(lines))


@pytest.mark.parametrize("name, count", [("generate.md", 4), ("int8_int4.md", 1)])
def test_every_code_block_of_the_seeds_prints_what_it_shows(shared, name, count):
    found = blocks(shared / "seed" / name)
    assert len(found) == count
    space = {}
    torch.manual_seed(0)  # an unseeded random model may draw its end token early
    for code, expected in found:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(code, name, "exec"), space)
        assert out.getvalue().strip() == expected.strip(), code


def test_every_document_among_the_seeds_is_run(shared):
    assert sorted(p.name for p in (shared / "seed").iterdir()) == ["generate.md", "int8_int4.md"]
