from __future__ import annotations

import json
from pathlib import Path

import pytest

from tracking.events import scalars_in, texts_in
from turnout.tracking import open_tracker


def test_event_files_hold_every_metric_of_every_step_and_the_settings(tmp_path: Path) -> None:
    with open_tracker(f"tensorboard:{tmp_path}", run="rbcsf (a/b), seed 0", settings={"speed_weight": 5}) as tracker:
        for step in (1, 2, 5):
            tracker.log({"round/seconds": step / 4, "metrics/accuracy": 1 - 1 / step}, step)
    assert tracker.failures == 0
    folder = tmp_path / "rbcsf-a-b-seed-0"
    result = scalars_in(folder)
    assert result["round/seconds"] == {1: 0.25, 2: 0.5, 5: 1.25}
    assert result["metrics/accuracy"] == pytest.approx({1: 0.0, 2: 0.5, 5: 0.8})
    (text,) = texts_in(folder).values()
    assert json.loads(text) == {"speed_weight": 5}


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Exception, match="cannot be opened"):
        open_tracker(f"tensorboard:{tmp_path}/file")
