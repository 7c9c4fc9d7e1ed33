"""What servers and workers of batch predictions keep of their memory."""

from __future__ import annotations

import subprocess
import sys

import pytest

_PROGRAM = """
import ctypes, resource, sys, threading
from ltnode.allocator import keep_memory

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
known = keep_memory() if sys.argv[1] == "keep" else False

def use(times):
    for _ in range(times):
        blocks = [libc.malloc(ctypes.c_size_t(8 << 20)) for _ in range(8)]
        for block in blocks:
            ctypes.memset(block, 1, 8 << 20)
        for block in blocks:
            libc.free(block)

def measure():
    use(2)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    use(10)
    print(int(known), resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

thread = threading.Thread(target=measure)
thread.start()
thread.join()
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only the allocator of glibc has these options")
def test_memory_that_is_used_again_has_its_pages_already():
    """A thread uses and frees 64 MiB ten times; without the options, glibc gives a part back and has to ask for it again."""

    def faults(how: str) -> tuple[bool, int]:
        done = subprocess.run([sys.executable, "-c", _PROGRAM, how], capture_output=True, text=True, check=True)
        known, count = done.stdout.split()
        return known == "1", int(count)

    known, kept = faults("keep")
    if not known:
        pytest.skip("this C library has no such options")
    assert kept < 1000 < faults("leave")[1]
