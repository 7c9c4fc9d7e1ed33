"""CUDA sources: complete for a compiler without include paths, and documented for the next reader."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ltnode.accelerate.kernels import nvrtc

PACKAGE = Path(nvrtc.__file__).parent
ROOT = Path(__file__).parents[3]
SOURCES = sorted((*PACKAGE.glob("*/*.cu"), *PACKAGE.glob("triton/*_kernels.py")), key=lambda path: path.name)


@pytest.mark.parametrize("path", [path for path in SOURCES if path.suffix == ".cu"], ids=lambda path: path.stem)
def test_sources_inline_all_their_includes(path: Path):
    """NVRTC gets one text: every header once, and no include left."""
    text = nvrtc.source_text(path.stem)
    assert "#include" not in text and text.count("__shfl_xor_sync") == 1 and 'extern "C" __global__' in text


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_headers_say_what_a_kernel_computes_and_where_it_is_tested(path: Path):
    """Formula, shapes, division of work, reference, and a test that exists."""
    header = path.read_text("utf-8").split("\n\n#include")[0].split("\n\nimport")[0]
    assert all(word in header for word in ("Formula", "Shapes", "Work", "ynchronisation", "eference"))
    (test,) = re.findall(r"tests/accelerate/kernels/test_\w+\.py", header)
    assert (ROOT / test).exists()
