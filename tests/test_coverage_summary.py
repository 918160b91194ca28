from __future__ import annotations

from coverage_summary import add_up, as_table


def file_of(*counts: int) -> dict[str, dict[str, int]]:
    names = ("covered_lines", "num_statements", "covered_branches", "num_branches")
    return {"summary": dict(zip(names, counts, strict=True))}


def test_lines_and_branches_are_added_up_by_package() -> None:
    report = {
        "files": {
            "src/turnout/storage/training_log.py": file_of(8, 10, 1, 2),
            "src/turnout/storage/files/lock.py": file_of(10, 10, 2, 2),
            "src/turnout/kernel/cohort.py": file_of(5, 5, 0, 0),
            "src/turnout/errors.py": file_of(1, 3, 0, 0),
        }
    }
    packages = add_up(report)
    assert packages == {
        "kernel": [5, 5, 0, 0],
        "storage": [18, 20, 3, 4],
        "turnout": [1, 3, 0, 0],
        "all": [24, 28, 3, 4],
    }
    lines = [line.split() for line in as_table(packages).splitlines()]
    assert lines[1] == ["kernel", "5", "100.0%", "0", "–"]
    assert lines[2] == ["storage", "20", "90.0%", "4", "75.0%"]
    assert lines[-1] == ["all", "28", "85.7%", "4", "75.0%"]
