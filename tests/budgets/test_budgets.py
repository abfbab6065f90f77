"""Every operation costs what budgets.toml says. `make profile` shows where its time goes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.budgets.budget import COUNTS, FILE, Budgets, fault, load_budgets
from tests.budgets.counts import PYTHON
from tests.budgets.operations import OPERATIONS

ROOT = Path(__file__).parent.parent.parent
Measured = dict[str, dict[str, Any]]
MOST_FILES = {"step_with_effect": 28, "decision_over_http": 14, "policy_apply": 15}
"""Of the package, whose functions run. `python -m scripts.layout --trace` prints them."""
OF_THE_DATABASE = [count for count in COUNTS if count != "python_calls"]


@pytest.fixture(scope="module")
def measured() -> Measured:
    """Counted in a process of its own: what other tests loaded, cached or configured plays no part."""
    done = subprocess.run([sys.executable, "-m", "tests.budgets", "--json"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    known: Measured = json.loads(done.stdout)
    return known


def check(measured: Measured, counts: Sequence[str]) -> None:
    budgets = load_budgets()
    faults = [
        wrong for operation in OPERATIONS for count in counts if (wrong := _fault(operation, count, measured, budgets))
    ]
    if faults:
        advice = f"If this is meant, change the figures in {FILE.relative_to(ROOT)} in the same commit, whose message says why."
        pytest.fail("\n".join([*faults, advice]), pytrace=False)


def _fault(operation: str, count: str, measured: Measured, budgets: Budgets) -> str | None:
    known = measured[operation]
    return fault(operation, count, known["counts"][count], budgets[operation][count], known["parts"][count])


@pytest.mark.proves("D.410")
def test_database_work_stays_within_its_budget(measured: Measured) -> None:
    check(measured, OF_THE_DATABASE)


@pytest.mark.proves("D.410")
@pytest.mark.skipif(
    sys.version_info[:2] != PYTHON,
    reason=f"calls are counted with Python {'.'.join(map(str, PYTHON))}: other versions call other functions",
)
def test_python_work_stays_within_its_budget(measured: Measured) -> None:
    check(measured, ["python_calls"])


@pytest.mark.proves("D.410")
@pytest.mark.parametrize(("operation", "most"), MOST_FILES.items())
def test_operations_pass_few_files(measured: Measured, operation: str, most: int) -> None:
    files = measured[operation]["files"]
    assert "cortex_plane/db/pool.py" in files
    assert len(files) <= most, files


def test_meter_sees_known_work(measured: Measured) -> None:
    counts = measured["known_work"]["counts"]
    assert {count: counts[count] for count in ("round_trips", "commits", "rows", "sequential_scans")} == {
        "round_trips": 4,  # begin, two statements, commit
        "commits": 1,
        "rows": 1,
        "sequential_scans": 1,
    }
    assert measured["known_work"]["parts"]["sequential_scans"] == ["      9  message"]
    assert measured["known_work"]["parts"]["rows"] == ["      1  user_account"]


def test_every_operation_has_every_budget() -> None:
    budgets = load_budgets()
    assert list(budgets) == list(OPERATIONS)
    assert all(tuple(known) == COUNTS for known in budgets.values())


def test_a_figure_that_grew_or_fell_is_a_fault() -> None:
    assert fault("claim", "rows", 4, 4, []) is None
    assert fault("claim", "wal_bytes", 1650, 1600, []) is None
    assert fault("claim", "rows", 5, 4, ["      2  job"]) == (
        "claim: rows is 5, which exceeds its budget of 4\n          2  job"
    )
    assert fault("claim", "python_calls", 60, 70, []) == (
        "claim: python_calls is 60, which is less than its budget of 70 ± 1"
    )
