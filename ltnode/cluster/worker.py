"""A worker process of the local engine: reads tasks from standard input, and writes their answers to standard output, as JSON.

Run as ``python -m ltnode.cluster.worker``. It ends with its caller: when standard input closes, it stops its task as if it had
received SIGTERM, so that a training writes a checkpoint.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading

from ltnode.cluster.executor import call


def main() -> None:
    """Answer tasks until standard input closes."""
    answers = os.fdopen(os.dup(1), "w")
    # Whatever a library prints must not come between the answers, and only the caller draws progress bars.
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    tasks: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_read, args=(tasks,), daemon=True).start()
    while True:
        task = json.loads(tasks.get())
        answer = call(task["function"], task["arguments"])
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _read(tasks: queue.Queue[str]) -> None:
    for line in sys.stdin:
        tasks.put(line)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
