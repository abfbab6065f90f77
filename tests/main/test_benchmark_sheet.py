"""The sheet of a run: what parts record, the page, and plots that a browser can draw."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from benchmarks import goals, sheet


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """A run of one part, as `python -m benchmarks --out` writes it."""
    figures = tmp_path / "figures.jsonl"
    monkeypatch.setenv(goals.VARIABLE, str(figures))
    assert goals.goal("steps", "ours to Absurd", 1.25, "≥", 1.2)
    assert not goals.goal("guarded call", "alone", 14.0, "≤", 4, " ms")
    goals.table("durable step", "steps/s", {"ours": 1234.0, "peer <b>": 0.5})
    for plot in sheet.PLOTS:
        goals.line(plot.name, "ours & others", [(1, 196), (16, 336)])
        goals.line(plot.name, "nothing", [(0, 0)])
    lines = [json.loads(line) for line in figures.read_text().splitlines()]
    printed = capsys.readouterr().out
    assert "MISSED" in printed
    assert " met" in printed
    about = {"commit": "abc", "date": "2026-11-18", "cores": 2, "postgres": 18, "smoke": False}
    return about | {
        "parts": [{"part": "steps", "code": 3, "figures": lines}, {"part": "gates", "code": 1, "figures": []}]
    }


def test_nothing_is_kept_without_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(goals.VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    assert goals.goal("steps", "ours", 1.0, "≥", 1.0)
    assert list(tmp_path.iterdir()) == []


def test_the_page_names_goals_misses_and_failures(run: dict[str, Any]) -> None:
    page = sheet.write_page(run)
    assert "commit `abc` on 2026-11-18: 2 cores, PostgreSQL 18" in page
    assert "| steps | ours to Absurd | 1.25× | ≥ 1.2× | met |" in page
    assert "| guarded call | alone | 14.00 ms | ≤ 4 ms | **missed** |" in page
    assert "| ours | 1,234 |" in page
    assert "failed and have no figures: gates" in page


def test_figures_replace_those_of_the_run_before(run: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "why"
    folder.mkdir()
    (folder / sheet.PAGE).write_text(f"# Head\n\n{sheet.BEGIN}\nold\n{sheet.END}\n\nRest\n")
    for _ in range(2):
        sheet.write_sheet(run, folder)
    text = (folder / sheet.PAGE).read_text()
    assert text.startswith("# Head\n")
    assert text.endswith(f"{sheet.END}\n\nRest\n")
    assert "old" not in text
    assert text.count(sheet.BEGIN) == 1
    for name in re.findall(r"\]\((\S+\.svg)\)", text):
        assert (folder / name).exists()
    assert len(list(folder.glob("*.svg"))) == len(sheet.PLOTS)


def test_the_committed_page_has_a_place_for_figures() -> None:
    text = (sheet.FOLDER / sheet.PAGE).read_text()
    assert text.index(sheet.BEGIN) < text.index(sheet.END)


@pytest.mark.parametrize("plot", sheet.PLOTS, ids=lambda plot: plot.name)
def test_a_plot_is_small_svg_with_axes_units_and_both_schemes(plot: sheet.Plot) -> None:
    lines = [(f"engine {n}", [(1.0, 10.0 * (n + 1)), (4.0, 90.0), (16.0, 2_700.0)]) for n in range(12)]
    text = sheet.draw(plot, lines)
    root = ET.fromstring(text)
    words = [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {plot.title, plot.x, plot.y, "engine 0", "engine 11"} <= set(words)
    assert "prefers-color-scheme: dark" in text
    assert len(text) < 20_000
    width, height = (float(n) for n in root.attrib["viewBox"].split()[2:])
    for circle in root.iter("{http://www.w3.org/2000/svg}circle"):
        assert 0 <= float(circle.attrib["cx"]) <= width
        assert 0 <= float(circle.attrib["cy"]) <= height


@pytest.mark.parametrize("points", [[], [(1.0, 1.0)], [(0.0, 0.0)], [(5.0, 5.0), (5.0, 5.0)]])
def test_a_plot_of_little_is_drawn_too(points: list[tuple[float, float]]) -> None:
    for plot in sheet.PLOTS:
        ET.fromstring(sheet.draw(plot, [("one", points)]))
