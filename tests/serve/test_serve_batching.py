"""The queue: requests share batches, answers do not change, and no request waits forever."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Sequence
from concurrent.futures import CancelledError
from typing import Any

import httpx
import pytest
import torch

from ltnode.serve import Limits, create_app
from ltnode.serve.batching import Batcher
from ltnode.serve.failures import ApiError
from ltnode.serve.service import predict_together
from ltnode.trained import TrainedModel
from serve.serving import close, images, send_all


def batches_of(app: Any, model: str) -> tuple[int, int]:
    """Number of batches and inputs so far, from /metrics."""
    lines = app.state.service.metrics.text().splitlines()
    values = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}
    label = f'{{model="{model}"}}'
    return int(values.get(f"ltnode_batch_inputs_count{label}", 0)), int(values.get(f"ltnode_batch_inputs_sum{label}", 0))


def predict_request(model: str, raw: torch.Tensor, **more: Any) -> Any:
    async def request(client: httpx.AsyncClient) -> httpx.Response:
        return await client.post("/api/predict", json={"model": model, "inputs": raw.double().tolist(), **more})

    return request


def starting(app: Any, waiting: int) -> Any:
    """A request that starts the worker once this many others wait."""

    async def start(client: httpx.AsyncClient) -> None:
        for _ in range(500):
            if len(app.state.service.batcher) >= waiting:
                break
            await asyncio.sleep(0.01)
        app.state.service.start()

    return start


@pytest.mark.parametrize("name", ["lt", "alt"])
def test_requests_share_a_batch_without_changing_the_answers(trained: dict[str, TrainedModel], name: str):
    """16 waiting requests form one batch; each answer equals that of a separate request, to 1e-5 (float32 sums)."""
    app = create_app([trained[name]])
    raw = images(16, seed=2)
    answers = send_all(app, [predict_request(name, one[None]) for one in raw] + [starting(app, 16)])
    app.state.service.stop()
    assert batches_of(app, name) == (1, 16)
    for one, answer in zip(raw, answers, strict=False):
        alone = trained[name].rows(one[None])[0].to_json()
        assert close(answer.json()["predictions"], [json.loads(json.dumps(alone))])


def test_a_batch_is_never_larger_than_max_batch(trained: dict[str, TrainedModel]):
    app = create_app([trained["lt"]], Limits(max_batch=4))
    send_all(app, [predict_request("lt", one[None]) for one in images(10)] + [starting(app, 10)])
    app.state.service.stop()
    assert batches_of(app, "lt") == (3, 10)


def test_only_similar_requests_share_a_batch(trained: dict[str, TrainedModel]):
    """Another model or number of samples needs another batch; an SDE-Net draws noise by position and never shares."""
    app = create_app([trained["lt"], trained["node"], trained["sde"]])
    raw = images(1)
    requests = [predict_request("lt", raw), predict_request("node", raw), predict_request("lt", raw, samples=3)]
    requests += [predict_request("lt", raw), predict_request("sde", raw), predict_request("sde", raw)]
    answers = send_all(app, [*requests, starting(app, 6)])[:6]
    app.state.service.stop()
    assert [answer.status_code for answer in answers] == [200] * 6
    assert batches_of(app, "lt") == (2, 3)
    assert batches_of(app, "node") == (1, 1)
    assert answers[4].json() == answers[5].json()


def test_over_the_limit_the_answer_is_503_at_once(trained: dict[str, TrainedModel]):
    """While the worker is stopped, three requests wait and twenty are refused within a second; then the three are answered."""
    app = create_app([trained["lt"]], Limits(max_queue=3))
    raw = images(1)
    took: list[float] = []

    async def late(client: httpx.AsyncClient) -> httpx.Response:
        while len(app.state.service.batcher) < 3:
            await asyncio.sleep(0.01)
        began = time.monotonic()
        answer = await predict_request("lt", raw)(client)
        took.append(time.monotonic() - began)
        if len(took) == 20:
            app.state.service.start()
        return answer

    answers = send_all(app, [predict_request("lt", raw)] * 3 + [late] * 20)
    app.state.service.stop()
    assert [answer.status_code for answer in answers] == [200] * 3 + [503] * 20
    assert max(took) < 1.0
    assert answers[-1].headers["retry-after"] == "1"
    assert answers[-1].json()["error"]["code"] == "queue_full"


def test_a_request_that_waits_too_long_is_answered_504(trained: dict[str, TrainedModel]):
    """Without a worker, the request fails after its limit of 0.3 s, and a worker that starts later skips its job."""
    app = create_app([trained["lt"]], Limits(seconds=0.3))
    began = time.monotonic()
    (answer,) = send_all(app, [predict_request("lt", images(1))])
    assert answer.status_code == 504 and answer.json()["error"]["code"] == "timeout"
    assert time.monotonic() - began < 5
    app.state.service.start()
    app.state.service.stop()
    assert batches_of(app, "lt") == (0, 0)


def test_a_stopping_application_accepts_no_requests(trained: dict[str, TrainedModel]):
    app = create_app([trained["lt"]])
    app.state.service.start()
    app.state.service.stop()

    async def with_a_file(client: httpx.AsyncClient) -> httpx.Response:
        return await client.post("/api/trajectory", json={"sample": "digit-3"})

    for answer in send_all(app, [predict_request("lt", images(1)), with_a_file]):
        assert answer.status_code == 503 and answer.json()["error"]["code"] == "stopping"


def test_a_batch_splits_its_rows_by_request(trained: dict[str, TrainedModel]):
    lt = trained["lt"]
    x = lt.prepare(images(6))
    answers = predict_together(lt, 5, [x[:1], x[1:4], x[4:]])
    assert [len(answer.rows) for answer in answers] == [1, 3, 2]
    assert [row for answer in answers for row in answer.rows] == lt.rows_of(lt.predict_inputs(x, 5), x)


# The queue without a server.


def double(values: Sequence[int]) -> list[int]:
    return [2 * value for value in values]


def test_jobs_with_other_keys_keep_their_place():
    """The jobs a b a c b a form the batches aaa, bb, c: the oldest job is first, and jobs with the same key join it."""
    seen: list[list[Any]] = []
    queue = Batcher(8, 0.0, 100)
    futures = [queue.submit(key, lambda values: seen.append(list(values)) or list(values), key, 1, 10) for key in "abacba"]
    queue.start()
    assert [future.result(5) for future in futures] == list("abacba")
    queue.stop()
    assert seen == [list("aaa"), list("bb"), list("c")]


def test_one_bad_job_does_not_affect_the_others():
    def work(values: Sequence[int]) -> list[float]:
        return [1 / value for value in values]

    queue = Batcher(8, 0.0, 100)
    futures = [queue.submit("k", work, value, 1, 10) for value in (1, 0, 2)]
    queue.start()
    assert futures[0].result(5) == 1 and futures[2].result(5) == 0.5
    with pytest.raises(ZeroDivisionError):
        futures[1].result(5)
    assert queue.submit("k", work, 4, 1, 10).result(5) == 0.25
    queue.stop()


def test_work_with_too_few_results_is_an_error_and_the_worker_continues():
    queue = Batcher(8, 0.0, 100)
    queue.start()
    with pytest.raises(ValueError, match="zip"):
        queue.submit("k", lambda values: [], 1, 1, 10).result(5)
    assert queue.submit("k", double, 1, 1, 10).result(5) == 2
    queue.stop()


def test_stopping_finishes_what_was_accepted():
    queue = Batcher(1, 0.0, 100)
    futures = [queue.submit("k", double, n, 1, 10) for n in range(20)]
    queue.start()
    queue.stop()
    assert [future.result(0) for future in futures] == [2 * n for n in range(20)]
    with pytest.raises(ApiError, match="shutting down"):
        queue.submit("k", double, 1, 1, 10)


def test_cancelled_and_late_jobs_are_skipped():
    queue = Batcher(8, 0.0, 3)
    worked: list[int] = []

    def work(values: Sequence[int]) -> Sequence[int]:
        worked.extend(values)
        return values

    left, late, good = queue.submit("k", work, 1, 1, 10), queue.submit("k", work, 2, 1, -1), queue.submit("k", work, 3, 1, 10)
    with pytest.raises(ApiError, match="3 requests"):
        queue.submit("k", work, 4, 1, 10)
    left.cancel()
    queue.start()
    assert good.result(5) == 3
    with pytest.raises(ApiError, match="waited too long"):
        late.result(5)
    with pytest.raises(CancelledError):
        left.result(5)
    queue.stop()
    assert worked == [3]


def submit_after(queue: Batcher, seconds: float, announced: threading.Event) -> None:
    with queue.expecting():
        announced.set()
        time.sleep(seconds)
        queue.submit("k", double, 2, 1, 10)


def test_a_first_job_waits_for_others_that_are_announced():
    """Two jobs 50 ms apart share a batch; the wait of 5 s ends at once because the batch (2 inputs) is full."""
    sizes: list[int] = []
    queue = Batcher(2, 5.0, 100, on_batch=lambda key, inputs: sizes.append(inputs))
    queue.start()
    announced = threading.Event()
    other = threading.Thread(target=submit_after, args=(queue, 0.05, announced))
    other.start()
    announced.wait(5)
    began = time.monotonic()
    assert queue.submit("k", double, 1, 1, 10).result(5) == 2
    assert time.monotonic() - began < 4
    other.join()
    queue.stop()
    assert sizes == [2]


def test_a_job_does_not_wait_if_none_is_announced():
    """A wait of 30 s would be noticed: without other requests it does not begin, and it ends when an announced one is refused."""
    queue = Batcher(8, 30.0, 100)
    queue.start()
    began = time.monotonic()
    assert queue.submit("k", double, 1, 1, 10).result(5) == 2
    with queue.expecting():
        waiting = queue.submit("k", double, 2, 1, 10)
    assert waiting.result(5) == 4
    assert time.monotonic() - began < 5
    queue.stop()
