# SPDX-License-Identifier: Apache-2.0
"""Plots as SVG text, without any library: a scatter of cost against size with its Pareto front, and
bars with their deviation. Colours come from CSS variables of the page around them.
"""

from __future__ import annotations

import dataclasses
import html
import math

WIDTH, HEIGHT = 760, 420
LEFT, RIGHT, TOP, BOTTOM = 70, 24, 34, 48


@dataclasses.dataclass
class Point:
    x: float
    y: float
    label: str
    group: str  # CSS class: "kwker", "transformers", "llama"
    err: float = 0.0


def front(points: list[Point]) -> list[Point]:
    """Those that no other point beats in both x and y, by rising x."""
    out = []
    for p in sorted(points, key=lambda p: (p.x, p.y)):
        if not out or p.y < out[-1].y:
            out.append(p)
    return out


def linear_ticks(low: float, high: float, about: int = 6) -> list[float]:
    """Round numbers within low..high."""
    span = high - low
    if not span > 0:
        return [low]
    raw = span / about
    step = 10.0 ** math.floor(math.log10(raw))
    step *= next(m for m in (1, 2, 5, 10) if m * step >= raw)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2, 5 of each power of ten within low..high; more of them where those are few."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for steps in ((1, 2, 5), (1, 1.5, 2, 3, 4, 5, 7)):
        every = (m * 10.0**e for e in range(first, last + 1) for m in steps)
        ticks = [t for t in every if low * 0.999 <= t <= high * 1.001]
        if len(ticks) >= 4:
            break
    return ticks


class Axis:
    """Values to pixels. On a logarithmic axis zero and less lie at its start, marked as 0."""

    def __init__(self, values, start: float, end: float, log: bool = False, zero: bool = False):
        self.log = log
        self.start, self.end = start, end
        if log:
            positive = [v for v in values if v > 0] or [1.0]
            gap = 1.25 if len(positive) == len(values) else 2.5  # room above the mark of 0
            self.low, self.high = min(positive) / gap, max(positive) * 1.25
            self.ticks = log_ticks(self.low * (gap / 1.25), self.high)
        else:
            low, high = (0.0 if zero else min(values)), max(values)
            pad = 0.07 * (high - low) or 0.07 * abs(high) or 1.0
            self.low, self.high = (low if zero else low - pad), high + pad
            self.ticks = linear_ticks(self.low, self.high)

    def __call__(self, v: float) -> float:
        if self.log:
            v = math.log(max(v, self.low) / self.low) / math.log(self.high / self.low)
        else:
            v = (v - self.low) / (self.high - self.low)
        return round(self.start + v * (self.end - self.start), 2)


def _number(v: float) -> str:
    return f"{v:g}"


def _text(x, y, s, cls="", anchor="middle") -> str:
    return f'<text x="{x}" y="{y}" class="{cls}" text-anchor="{anchor}">{html.escape(s)}</text>'


def _line(x1, y1, x2, y2, cls) -> str:
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" class="{cls}"/>'


def _svg(title: str, parts: list[str], height: int = HEIGHT) -> str:
    name = html.escape(title, quote=True)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{name}">'
        + _text(LEFT, 18, title, "title", "start")
        + "".join(parts)
        + "</svg>"
    )


def _place(boxes: list[tuple], x: float, y: float, text: str) -> tuple[float, float, str]:
    """Where a label overlaps no other: the first of a few places around its point."""
    w, h = 7.0 * len(text), 13.0
    spots = [(9, -7), (9, 17), (-9, -7), (-9, 17), (9, 4), (-9, 4), (9, -21), (9, 31), (9, 45)]
    for dx, dy in spots:
        x0 = x + dx if dx > 0 else x + dx - w
        box = (x0, y + dy - h, x0 + w, y + dy)
        inside = x0 > LEFT and box[2] < WIDTH and box[1] > TOP - h and box[3] < HEIGHT - BOTTOM + h
        if inside and not any(
            box[0] < b[2] and b[0] < box[2] and box[1] < b[3] and b[1] < box[3] for b in boxes
        ):
            break
    boxes.append(box)
    return (x + dx, y + dy, "start" if dx > 0 else "end")


def scatter(points: list[Point], title: str, x_label: str, y_label: str, log_y: bool) -> str:
    """Lower left is better, x logarithmic. The line is the Pareto front."""
    points = [p for p in points if 0 < p.x < math.inf and math.isfinite(p.y)]
    if not points:
        return ""
    ends = [v for p in points for v in (p.y, p.y - p.err, p.y + p.err)]
    ax = Axis([p.x for p in points], LEFT + 20, WIDTH - RIGHT - 100, log=True)
    ay = Axis([p.y for p in points] if log_y else ends, HEIGHT - BOTTOM, TOP, log=log_y)
    parts = []
    for t in ax.ticks:
        parts += [_line(ax(t), TOP, ax(t), HEIGHT - BOTTOM, "grid"),
                  _text(ax(t), HEIGHT - BOTTOM + 17, _number(t), "tick")]  # fmt: skip
    for t in ay.ticks:
        parts += [_line(LEFT, ay(t), WIDTH - RIGHT, ay(t), "grid"),
                  _text(LEFT - 8, ay(t) + 4, _number(t), "tick", "end")]  # fmt: skip
    if log_y and any(p.y <= 0 for p in points):
        parts.append(_text(LEFT - 8, HEIGHT - BOTTOM + 4, "0", "tick", "end"))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, x_label, "label"))
    middle = (TOP + HEIGHT - BOTTOM) / 2
    parts.append(
        f'<text class="label" text-anchor="middle" transform="translate(16 {middle}) rotate(-90)">'
        f"{html.escape(y_label)}</text>"
    )
    steps = front(points)
    path = f"M{ax(steps[0].x)} {ay(steps[0].y)}" + "".join(
        f"H{ax(p.x)}V{ay(p.y)}" for p in steps[1:]
    )
    parts.append(f'<path class="front" d="{path}"/>')
    boxes = [(ax(p.x) - 6, ay(p.y) - 6, ax(p.x) + 6, ay(p.y) + 6) for p in points]
    for p in points:
        x, y = ax(p.x), ay(p.y)
        if p.err > 0:
            parts.append(_line(x, ay(p.y - p.err), x, ay(p.y + p.err), f"whisker {p.group}"))
        tip = html.escape(f"{p.label}: {p.x:.1f}, {p.y:.5g}")
        parts.append(
            f'<circle class="{p.group}" cx="{x}" cy="{y}" r="5"><title>{tip}</title></circle>'
        )
        tx, ty, anchor = _place(boxes, x, y, p.label)
        parts.append(_text(tx, ty, p.label, "name", anchor))
    return _svg(title, parts)


def bars(points: list[Point], title: str) -> str:
    """One bar for each point's y with its deviation; x is not used."""
    points = [p for p in points if math.isfinite(p.y)]
    if not points:
        return ""
    row, left = 26, 190
    height = TOP + row * len(points) + 30
    ax = Axis([p.y + p.err for p in points], left, WIDTH - RIGHT - 60, zero=True)
    parts = []
    for t in ax.ticks:
        parts += [_line(ax(t), TOP, ax(t), height - 26, "grid"),
                  _text(ax(t), height - 10, _number(t), "tick")]  # fmt: skip
    for i, p in enumerate(points):
        y = TOP + row * i + 4
        mid = y + (row - 8) / 2
        parts.append(_text(left - 8, mid + 4, p.label, "name", "end"))
        parts.append(
            f'<rect class="{p.group}" x="{left}" y="{y}" width="{max(ax(p.y) - left, 1):.2f}" '
            f'height="{row - 8}"/>'
        )
        if p.err > 0:
            parts.append(_line(ax(max(p.y - p.err, 0)), mid, ax(p.y + p.err), mid, "whisker"))
        parts.append(_text(ax(p.y + p.err) + 6, mid + 4, f"{p.y:.4g}", "tick", "start"))
    return _svg(title, parts, height)
