from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from lab.runs.keepsakes import make_report, make_selection
from turnout.errors import SettingError, StoreError
from turnout.kernel.rounds import RoundRecord
from turnout.lab import RoundColumns, RunPlan, RunStore, sweep
from turnout.lab.runs.tables import RunTable, TablePart

PLANS = [
    RunPlan("rbcsf", 6, 0, {"speed_weight": 5}),
    RunPlan("rbcsf", 6, 1, {"speed_weight": 5}),
    RunPlan("with-guarantee", 9, 0, {"policy": "oort", "guaranteed_rate": 0.1}, world_settings={"clients": 20}),
    RunPlan("fair-pace", 11, 0, concurrency=3),
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunStore]:
    with RunStore(tmp_path_factory.mktemp("runs") / "runs.turnout") as opened:
        sweep(PLANS, opened, workers=1)
        yield opened


def rows_of(table: RunTable) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(table.to_csv())))


def test_a_table_of_rounds_has_one_row_per_run_and_round_with_the_settings(store: RunStore) -> None:
    rows = rows_of(store.table("rounds"))
    assert [(row["run"], row["round"]) for row in rows] == [
        (str(run), str(round_)) for run, length in ((1, 6), (2, 6), (3, 9), (4, 11)) for round_ in range(1, length + 1)
    ]
    assert [row["setting.speed_weight"] for row in rows] == ["5"] * 12 + [""] * 20
    assert {row["setting.policy"] for row in rows[12:21]} == {"oort"}
    assert {row["world_setting.clients"] for row in rows[12:21]} == {"20"}
    columns = store.columns(2)
    own = rows[6:12]
    assert [float(row["seconds"]) for row in own] == columns.durations.tolist()
    assert [float(row["elapsed_seconds"]) for row in own] == np.cumsum(columns.durations).tolist()
    assert [int(row["selected"]) for row in own] == np.diff(columns.starts).tolist()


def test_a_table_of_clients_sums_up_their_turns(store: RunStore) -> None:
    rows = rows_of(store.table("clients", runs=[3, 1]))
    assert [row["run"] for row in rows] == ["3"] * 20 + ["1"] * 40
    columns = store.columns(1)
    assert [int(row["turns"]) for row in rows[20:]] == columns.turns.tolist()
    assert columns.available is not None
    assert [int(row["available_rounds"]) for row in rows[20:]] == columns.available.sum(axis=0).tolist()
    for client, row in enumerate(rows[20:]):
        times = columns.exchange_times[columns.chosen == client]
        assert (
            row["mean_seconds"] == "" if not len(times) else float(row["mean_seconds"]) == pytest.approx(times.mean())
        )


def test_tables_of_turns_and_of_runs_have_their_rows(store: RunStore) -> None:
    rows, columns = rows_of(store.table("turns", runs=[1])), store.columns(1)
    assert [int(row["client"]) for row in rows] == columns.chosen.tolist()
    assert [float(row["seconds"]) for row in rows] == columns.exchange_times.tolist()
    assert {row["outcome"] for row in rows} == {"arrived"}
    assert [float(row["reason.owed"]) for row in rows] == columns.client_reasons["owed"].tolist()
    rows = rows_of(store.table("runs"))
    assert [(row["policy"], row["seed"], row["rounds"]) for row in rows] == [
        ("rbcsf", "0", "6"),
        ("rbcsf", "1", "6"),
        ("with-guarantee", "0", "9"),
        ("fair-pace", "0", "11"),
    ]
    assert float(rows[1]["mean_round_seconds"]) == store.columns(2).durations.mean()
    rows = rows_of(store.table("rounds", runs=[4]))
    assert [row["elapsed_seconds"] for row in rows] == [row["metric.finished"] for row in rows]
    (run,) = rows_of(store.table("runs", runs=[4]))
    assert float(run["total_seconds"]) == store.columns(4).metrics["finished"].max()


def test_pandas_and_parquet_hold_the_same_table(store: RunStore, tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    frame = store.to_pandas("rounds")
    assert frame.groupby("run")["round"].max().tolist() == [6, 6, 9, 11]
    assert frame["seconds"].dtype == np.float64
    assert frame["round"].dtype == np.int64
    assert frame["setting.speed_weight"].isna().sum() == 20
    store.table("rounds").write_parquet(tmp_path / "deep" / "rounds.parquet")
    read = pd.read_parquet(tmp_path / "deep" / "rounds.parquet")
    pd.testing.assert_frame_equal(read, frame, check_dtype=False)


def test_values_of_several_types_become_strings_and_nan_is_missing(tmp_path: Path) -> None:
    parts = [TablePart({"rate": 0.5, "tag": "x"}, {"a": np.array([1.0, np.nan])}), TablePart({"rate": "3/160"}, {})]
    table = RunTable(parts)
    assert len(table) == 3
    assert table.column("rate") == ["0.5", "0.5", "3/160"]
    assert table.column("a") == [1.0, None, None]
    assert table.to_csv() == "rate,tag,a\n0.5,x,1.0\n0.5,x,\n3/160,,\n"
    assert json.loads(table.to_jsonl().splitlines()[1]) == {"rate": 0.5, "tag": "x", "a": None}
    table.write_parquet(tmp_path / "mixed.parquet")


def test_what_cannot_be_a_table_is_refused(store: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingError, match=r"unknown table 'round' \(did you mean 'rounds'\?\)"):
        store.table("round")  # type: ignore[arg-type]
    with pytest.raises(StoreError, match="there is no run 9"):
        store.table(runs=[9])
    with pytest.raises(StoreError, match="there is no run to put into a table"):
        store.table(runs=[])
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(SettingError, match=r"a DataFrame needs pandas: pip install 'turnout\[tables\]'"):
        store.to_pandas()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(SettingError, match=r"Parquet files need pyarrow: pip install 'turnout\[tables\]'"):
        store.table().write_parquet(tmp_path / "x.parquet")


def test_losses_are_averaged_without_those_that_were_not_measured(tmp_path: Path) -> None:
    losses: list[dict[int, float]] = [{0: 0.5, 2: 1.5}, {1: 4.0}, {2: np.nan, 0: 1.0}]
    rounds = [
        RoundRecord(
            make_selection(*measured, round_=round_),
            make_report(*measured, round_=round_, losses=np.array(list(measured.values()))),
        )
        for round_, measured in enumerate(losses, start=1)
    ]
    with RunStore(tmp_path / "runs.turnout") as store:
        store.write_run(
            "one", {"policy": "x"}, RoundColumns.from_records(rounds, clients=4), clients=4, code_version="1"
        )
        by_round, by_client, turns = (store.table("rounds"), store.table("clients"), store.table("turns"))
    assert by_round.column("mean_loss") == [1.0, 4.0, 1.0]
    assert by_client.column("mean_loss") == [0.75, 4.0, 1.5, None]
    assert list(zip(turns.column("client"), turns.column("loss"), strict=True)) == [
        (0, 0.5),
        (2, 1.5),
        (1, 4.0),
        (2, None),
        (0, 1.0),
    ]
    assert "available" not in by_round.names
    assert "available_rounds" not in by_client.names


def test_a_run_without_rounds_has_only_their_number(tmp_path: Path) -> None:
    with RunStore(tmp_path / "runs.turnout") as store:
        store.begin("one", {"policy": "x", "seed": 3}, clients=4, code_version="1")
        (run,) = rows_of(store.table("runs"))
    assert (run["policy"], run["seed"], run["rounds"]) == ("x", "3", "0")
    assert "total_seconds" not in run


def test_a_parquet_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "file").touch()
    table = RunTable([TablePart({"a": 1}, {})])
    with pytest.raises(SettingError, match=r"cannot write .*rounds.parquet: (Not a directory|File exists)"):
        table.write_parquet(tmp_path / "file" / "rounds.parquet")
