"""The style of figures: colours, lines and markers of contenders, labels, descriptions and files."""

from __future__ import annotations

import itertools
import warnings
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.text import Annotation

from turnout.errors import SettingError
from turnout.lab.drawing.palette import NAMED, OTHERS, POLICIES, TRUE_TIMES, policy_style, style_of, styles_of
from turnout.lab.drawing.style import MARKERS, as_svg, curve, figure, save, save_as, thin_curve, write_labels
from turnout.lab.studies.leaderboard.suites import SUITES
from turnout.lab.studies.paper.comparison import LABELS
from turnout.policies import POLICIES as KNOWN


def test_every_policy_has_a_style_that_differs_in_more_than_colour() -> None:
    assert set(KNOWN) | {"with-guarantee"} == set(POLICIES)
    assert len(set(POLICIES.values())) == len(POLICIES)
    for styles in (NAMED.values(), OTHERS):
        for one, other in combinations(styles, 2):
            assert (one.line, one.marker) != (other.line, other.marker)
    assert [style_of("mine", index) for index in range(len(OTHERS) + 1)] == [*OTHERS, OTHERS[0]]


@pytest.mark.parametrize(
    ("label", "policy"),
    [
        ("random", "random"),
        ("random (FedBuff)", "random"),
        ("FairPace, tolerance 5", "fair-pace"),
        ("RBCS-F 0.5, 75 %", "rbcsf"),
        ("rbcsf:speed_weight=5", "rbcsf"),
        ("CS-UCB-Q", "cs-ucb-q"),
        ("guard only, 75 %", "with-guarantee"),
    ],
)
def test_a_label_has_the_style_of_its_policy_in_every_figure(label: str, policy: str) -> None:
    assert style_of(label, 3) == style_of(label) == POLICIES[policy]


def test_variants_of_a_policy_differ_in_line_or_marker() -> None:
    labels = [f"RBCS-F, weight {weight}" for weight in range(60, 90)]
    styles = styles_of(labels)
    assert list(styles) == labels
    assert len(set(styles.values())) == len(labels)
    assert {style.colour for style in styles.values()} == {POLICIES["rbcsf"].colour}
    assert len(set(styles_of(LABELS).values())) == len(LABELS)


def test_contenders_are_known_policies_and_those_given_the_true_times_share_a_hue() -> None:
    assert policy_style("fair-pace", true_times=True).colour == TRUE_TIMES == style_of("FedCS(3)").colour
    assert policy_style("fair-pace").colour != TRUE_TIMES
    assert policy_style("no such policy") == OTHERS[0]
    assert {OTHERS[0].colour, OTHERS[1].colour}.isdisjoint(style.colour for style in POLICIES.values())
    compared = {contender.policy for suite in SUITES.values() for contender in suite.contenders}
    assert compared <= {*POLICIES, "quota"}  # a wrapper, which has no style of its own


def test_labels_of_crowded_points_overlap_neither_each_other_nor_the_points() -> None:
    rng = np.random.default_rng(3)
    x, y = rng.uniform(0.0, 1.0, 12), rng.uniform(0.0, 0.2, 12)
    texts = [f"contender {number}" for number in range(12)]
    with figure(9.0, 5.0) as drawn:
        axes = drawn.subplots()
        axes.plot(x, y, "o", markersize=4)
        axes.plot([0.0, 1.0], [0.5, 0.5])
        axes.set(xlim=(-0.1, 1.2), ylim=(-0.2, 1.0))
        write_labels(axes, x, y, texts)
        drawn.draw_without_rendering()
        notes = [child for child in axes.get_children() if isinstance(child, Annotation) and child.get_text()]
        boxes = [note.get_window_extent() for note in notes]
        points = axes.transData.transform(np.column_stack([x, y]))
    assert [note.get_text() for note in notes] == texts
    for one, other in combinations(boxes, 2):
        assert not one.overlaps(other)
    for box in boxes:
        assert not any(box.contains(*point) for point in points.tolist())
        assert axes.bbox.contains(box.x0, box.y0)
        assert axes.bbox.contains(box.x1, box.y1)


def test_a_label_does_not_cover_a_line_or_the_legend() -> None:
    with figure(5.0, 4.0) as drawn:
        axes = drawn.subplots()
        axes.plot([0.0, 1.0, 2.0], [0.0, 1.0, 2.0], label="line")
        axes.legend(loc="upper left")
        write_labels(axes, np.array([1.0, 0.0]), np.array([1.0, 1.9]), ["a long label", "at the legend"])
        drawn.draw_without_rendering()
        notes = [child for child in axes.get_children() if isinstance(child, Annotation) and child.get_text()]
        line = axes.transData.transform(np.column_stack([np.linspace(0, 2, 400)] * 2))
        legend = axes.get_legend()
        assert legend is not None
        assert not any(notes[0].get_window_extent().contains(*point) for point in line.tolist())
        assert not notes[1].get_window_extent().overlaps(legend.get_window_extent())


def test_the_band_of_a_curve_does_not_leave_the_possible_values() -> None:
    with figure() as drawn:
        axes = drawn.subplots()
        mean, band = np.array([0.1, 0.95]), np.array([0.2, 0.1])
        curve(axes, "mine", np.arange(2.0), mean, band, style=OTHERS[0], limits=(0.0, 1.0))
        (line,), (filled,) = axes.get_lines(), axes.collections
    assert np.asarray(line.get_ydata()).tolist() == [0.1, 0.95]
    assert (line.get_color(), line.get_marker()) == (OTHERS[0].colour, OTHERS[0].marker)
    heights = np.asarray(filled.get_paths()[0].vertices)[:, 1]
    assert heights.min() == 0.0
    assert heights.max() == 1.0
    assert {0.85, 0.3} <= {round(float(height), 6) for height in heights}


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("length", [0, 1, 3, 500])
def test_a_line_of_any_length_has_a_few_markers(length: int, log: bool) -> None:
    with figure() as drawn:
        axes = drawn.subplots()
        x = np.arange(1.0, length + 1)
        curve(axes, "mine", x, x, style=OTHERS[0], log=log)
        marked = axes.get_lines()[0].get_markevery()
    assert isinstance(marked, list)
    assert len(marked) <= MARKERS
    assert bool(marked) == bool(length)
    assert all(0 <= index < length for index in marked)


def test_a_written_figure_says_what_it_shows() -> None:
    with figure() as drawn:
        left, right = drawn.subplots(1, 2, sharey=True)
        curve(left, "quick & <fair>", np.arange(3.0), np.array([3.0, 2.0, 1.5]), style=OTHERS[0])
        right.errorbar([2.0], [4.0], yerr=[1.0], label="random")
        left.set(title="Time", xlabel="round", ylabel="seconds")
        right.set(title="Points", xlabel="turns")
    page = ElementTree.fromstring(as_svg(drawn))
    names = [child.tag.rpartition("}")[2] for child in page]
    assert names[:2] == ["title", "desc"]
    assert page[0].text == "Time; Points"
    assert page[1].text == (
        "Time: seconds against round: quick & <fair> ends at 1.5. Points: seconds against turns: random at (2, 4)."
    )
    assert page.get("role") == "img"


def test_a_thinned_curve_keeps_the_first_and_the_last_round() -> None:
    values = np.arange(1.0, 10_001.0)
    rounds, kept = thin_curve(values, most=50)
    assert len(rounds) <= 50
    assert (rounds[0], rounds[-1]) == (1.0, 10_000.0)
    assert (kept == rounds).all()
    ratios = rounds[20:] / rounds[19:-1]
    assert ratios.max() < 1.4
    short, same = thin_curve(values[:5])
    assert short.tolist() == same.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with figure() as drawn:
        drawn.subplots().plot([1, 2])
        assert [path.name for path in save(drawn, tmp_path / "new", "times")] == ["times.svg", "times.png"]
        with pytest.raises(SettingError, match=r"cannot write figures into .*file/below: Not a directory"):
            save(drawn, tmp_path / "file" / "below", "times")


def test_a_legend_that_takes_long_on_a_busy_machine_is_no_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("matplotlib.legend.time", SimpleNamespace(perf_counter=itertools.count(0, 5).__next__))
    with figure() as drawn:
        axes = drawn.subplots()
        axes.plot([1, 2], label="a")
        axes.legend()
        with pytest.warns(UserWarning, match="can be slow"):
            drawn.draw_without_rendering()
        for write in (
            lambda: as_svg(drawn),
            lambda: save(drawn, tmp_path, "a"),
            lambda: save_as(drawn, tmp_path / "b.png"),
        ):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                write()
            assert caught == []
