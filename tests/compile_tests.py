"""Compile the package and its tests, as Python and pytest do when they import them. Processes that start later read the cache.

Run it as `python tests/compile_tests.py`. The assertions of the tests become those of pytest, which takes most of the time.
"""

from __future__ import annotations

import compileall
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from _pytest.assertion.rewrite import PYC_TAIL, _rewrite_test, _write_pyc

TESTS = Path(__file__).parent
STATE: Any = SimpleNamespace(trace=print)
"""What pytest reports an unwritable cache to."""

if __name__ == "__main__":
    for folder in (TESTS.parent / "src", TESTS):
        compileall.compile_dir(folder, quiet=1)
    for path in [*TESTS.rglob("test_*.py"), *TESTS.rglob("conftest.py")]:
        source_hash, code = _rewrite_test(path, None)  # type: ignore[arg-type]
        _write_pyc(STATE, code, source_hash, path.parent / "__pycache__" / f"{path.stem}{PYC_TAIL}")
