"""The table in docs/contract.md and the tests in this folder have the same rows."""

import pathlib
import re
import sys

FOLDER = pathlib.Path(__file__).resolve().parent
TABLE = FOLDER.parents[2] / "docs" / "contract.md"


def counted(letter, last):
    return [f"{letter}{i}" for i in range(1, last + 1)]


COMM = [
    "broadcast",
    "broadcast_coalesced",
    "gather",
    "gather_namedtuple",
    "memory_format",
    "reduce_add",
    "reduce_add_coalesced",
    "scatter",
    "scatter_namedtuple",
]
CPP = [
    "DataParallelNumericalEquivalence",
    "DataParallelPlacesTheOutputOnTheRequestedDevice",
    "DataParallelUsesAllAvailableCUDADevices",
    "DifferentiableGather",
    "DifferentiableScatter",
    "ParallelApply",
    "ParallelApplyRethrowsException",
    "ParallelApplyWithDifferentOutputDevice",
    "Replicate",
]
# The behaviour table's rows, and the cases of PyTorch's test_data_parallel.py, test_cuda_multigpu.py and parallel.cpp.
WANTED = [
    *counted("A", 15),
    *counted("B", 18),
    *counted("C", 18),
    *counted("D", 12),
    *counted("E", 11),
    *counted("F", 8),
    *counted("upstream-", 36),
    *(f"upstream-comm-{name}" for name in COMM),
    *(f"upstream-cpp-{name}" for name in CPP),
]


def rows_of():
    """Row to what its last cell says: a file, or why there is no test."""
    rows = {}
    for line in TABLE.read_text().splitlines():
        found = re.match(r"\| ([A-F]\d+|upstream-\S+) \|.* \| ([^|]+) \|$", line)
        if found:
            row, where = found.groups()
            if row in rows:
                yield f"{TABLE.name}: row {row} is there twice"
            rows[row] = where
    return rows


def tests_of():
    """Row to the files that have a test named by it."""
    tests = {}
    for file in FOLDER.glob("*.cpp"):
        for title in re.findall(r'TEST_CASE\(\s*"([^"]+)"', file.read_text()):
            for row in title.split(": ")[0].split(", "):
                tests.setdefault(row, set()).add(file.name)
    return tests


def problems():
    rows = yield from rows_of()
    tests = tests_of()
    for row in WANTED:
        if row not in rows:
            yield f"row {row} is not in {TABLE.name}"
    for row, where in rows.items():
        if where.startswith("none: "):
            if row in tests:
                yield f"row {row} has a test in {tests[row]}, but {TABLE.name} says there is none"
        elif set(re.findall(r"`([^`]+)`", where)) != tests.get(row, set()):
            yield f"row {row}: {TABLE.name} says {where}, tests with that name are in {sorted(tests.get(row, []))}"
    for row in tests:
        if row not in rows:
            yield f"test {row} is not in {TABLE.name}"


found = list(problems())
print("\n".join(found) or "every row has its test")
sys.exit(bool(found))
