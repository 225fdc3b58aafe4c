"""Every known fault has a test with its id in the name, and the table says so."""

from __future__ import annotations

from pathlib import Path

from tests.faults import CLAIMS, GROUPS, TABLE, Check, found, table

TESTS = list(found())
COUNTS = {"a": 9, "b": 11, "c": 9, "d": 15, "e": 10, "f": 6, "g": 6, "h": 6, "i": 6, "j": 3}


def test_there_are_81_faults_in_order() -> None:
    assert list(CLAIMS) == [f"{group}{n}" for group, count in COUNTS.items() for n in range(1, count + 1)]
    assert len(CLAIMS) == 81 and list(GROUPS) == list(COUNTS)
    assert len(set(CLAIMS.values())) == 81 and all(c.endswith(".") and "|" not in c for c in CLAIMS.values())


def test_every_fault_has_a_test() -> None:
    missing = set(CLAIMS) - {i for test in TESTS for i in test.ids}
    assert not missing, f"no test is called test_<id>_ for {sorted(missing)}"


def test_no_test_names_a_fault_that_is_not_in_the_list() -> None:
    unknown = [test.where for test in TESTS if not set(test.ids) <= set(CLAIMS)]
    assert not unknown
    assert all(len(set(test.ids)) == len(test.ids) for test in TESTS)


def test_the_table_is_up_to_date() -> None:
    assert TABLE.read_text(encoding="utf-8") == table(TESTS), "run: python -m tests.faults"


def test_only_what_is_not_built_yet_is_expected_to_fail() -> None:
    failing = {i for test in TESTS for i in test.ids if test.reason}
    holding = {i for test in TESTS for i in test.ids if not test.reason}
    assert failing - holding <= {"g3", "g4", "h1", "h3", "h4", "h5", "h6"}
    assert "no reason given" not in {test.reason for test in TESTS}


SOURCE = """
import pytest
later = pytest.mark.xfail(strict=True, reason="not yet")
def test_a1_plain(): ...
@pytest.mark.slow
@later
def test_h1_h5_two(): ...
class TestAll:
    @pytest.mark.parametrize("x", [1, pytest.param(2, marks=pytest.mark.xfail(reason="of 2"))])
    def test_e10_inside(self, x): ...
@pytest.mark.xfail
def test_z1_is_no_id(): ...
@pytest.mark.xfail()
def test_j9_unknown(): ...
def test_e2e_is_no_id(): ...
def test_a1(): ...
"""


def test_names_and_marks_are_read_from_the_source(tmp_path: Path) -> None:
    (tmp_path / "test_x.py").write_text(SOURCE, encoding="utf-8")
    tests = sorted(found(tmp_path))
    assert tests == [
        Check("test_x.py::test_a1_plain", ("a1",), "", False),
        Check("test_x.py::test_e10_inside", ("e10",), "of 2", False),
        Check("test_x.py::test_h1_h5_two", ("h1", "h5"), "not yet", True),
        Check("test_x.py::test_j9_unknown", ("j9",), "no reason given", False),
    ]
    rows = table(tests).splitlines()
    assert f"| h5 | {CLAIMS['h5']} | `test_x.py::test_h1_h5_two` *(slow)* | xfail: not yet |" in rows
    assert f"| a1 | {CLAIMS['a1']} | `test_x.py::test_a1_plain` | holds |" in rows
