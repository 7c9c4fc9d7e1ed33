"""The application: paths, their descriptions, and nothing else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request, Response
from fastapi.responses import FileResponse, PlainTextResponse
from starlette.staticfiles import StaticFiles

from ltnode._version import __version__
from ltnode.errors import InputError
from ltnode.serve import explore, failures, openapi, schemas
from ltnode.serve.failures import ApiError
from ltnode.serve.guard import Guard
from ltnode.serve.limits import Limits
from ltnode.serve.reader import Reader
from ltnode.serve.samples import samples
from ltnode.serve.service import Service
from ltnode.trained import TrainedModel

PAGE = Path(__file__).parent / "page"


def make_app(models: Sequence[TrainedModel], limits: Limits, token: str | None) -> FastAPI:
    """The application; see `ltnode.serve.create_app`."""
    service = Service(models, limits)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        # Beside the event loop, which still delivers the answers of the last requests.
        await asyncio.to_thread(service.stop)

    app = FastAPI(
        title="ltnode",
        version=__version__,
        description="Predictions of neural ODEs with a distribution over their end-time.",
        lifespan=lifespan,
        docs_url=None,  # both pages would load scripts from elsewhere
        redoc_url=None,
    )
    app.state.service = service
    app.add_middleware(Guard, limits=limits, token=token, metrics=service.metrics)
    failures.install(app)
    _add_plain_paths(app, service)
    _add_api(app, service)
    app.mount("/static", StaticFiles(directory=PAGE), name="static")
    openapi.complete(app, service, with_token=token is not None)
    return app


def _json(value: Any) -> Response:
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    except ValueError:
        raise InputError("the prediction is not finite: the input lies too far from what the model knows") from None
    return Response(text, media_type="application/json")


def _add_plain_paths(app: FastAPI, service: Service) -> None:
    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        index = PAGE / "index.html"
        if not index.is_file():
            raise ApiError(404, "not_found", "this installation has no page; the interface is described in /openapi.json")
        return FileResponse(index, media_type="text/html")

    @app.get("/healthz", response_model=schemas.Health, tags=["server"])
    async def health() -> Response:
        """The server lives."""
        return _json({"status": "ok", "models": len(service.models), "queue": len(service.batcher)})

    @app.get("/metrics", response_class=PlainTextResponse, tags=["server"])
    async def metrics() -> Response:
        """Counters and histograms for Prometheus."""
        return PlainTextResponse(service.metrics.text(), media_type="text/plain; version=0.0.4")


def _add_api(app: FastAPI, service: Service) -> None:
    limits = service.limits
    reader = Reader(service)
    models = {"models": [explore.describe_model(trained) for trained in service.models.values()]}

    @app.get("/api/models", response_model=schemas.ModelsResponse, responses=openapi.errors(), tags=["models"])
    async def list_models() -> Response:
        """The models, their end-times and the sample pictures that fit them."""
        return _json(models)

    @app.get("/api/samples/{name}.png", response_class=Response, responses=openapi.png_or_errors(404, 422), tags=["models"])
    async def sample_picture(name: str) -> Response:
        """A sample picture."""
        sample = samples().get(name)
        if sample is None:
            raise ApiError(404, "unknown_sample", f"there is no sample {name[:80]!r}; /api/models lists them")
        return FileResponse(sample.file, media_type="image/png")

    @app.post(
        "/api/predict",
        response_model=schemas.PredictResponse,
        responses=openapi.work_errors(),
        openapi_extra=openapi.request_body("PredictRequest", form=True),
        tags=["predictions"],
    )
    async def predict(request: Request) -> Response:
        """Predictions with their uncertainty. Requests that arrive together share a pass, which changes no answer."""
        async with asyncio.timeout(limits.seconds):
            trained, batch, count = await reader.prediction(request)
            answer = await service.predict(trained, batch.raw, count)
        rows = [row.to_json() for row in answer.rows]
        return _json({"model": trained.name, "predictions": rows, "evaluations": answer.evaluations, "notes": batch.notes})

    @app.post(
        "/api/trajectory",
        response_model=schemas.TrajectoryResponse,
        responses=openapi.work_errors(),
        openapi_extra=openapi.request_body("TrajectoryRequest"),
        tags=["predictions"],
    )
    async def trajectory(request: Request) -> Response:
        """What the prediction would be if the ODE stopped at t, beside the posterior of the end-time."""
        async with asyncio.timeout(limits.seconds):
            trained, batch, change, points, count = await reader.trajectory(request)
            work = partial(explore.trajectory, trained, batch.raw, change, points, count)
            found = await service.alone(work)
        return _json({**found, "notes": batch.notes})

    @app.post(
        "/api/sweep",
        response_model=schemas.SweepResponse,
        responses=openapi.work_errors(),
        openapi_extra=openapi.request_body("SweepRequest"),
        tags=["predictions"],
    )
    async def sweep(request: Request) -> Response:
        """An image turned by some angles, as several models see it."""
        async with asyncio.timeout(limits.seconds):
            chosen, turned, angles, count = await reader.sweep(request)
            answers = await asyncio.gather(*(service.predict(trained, turned, count) for trained in chosen))
        curves = [explore.sweep_curve(trained, answer.rows) for trained, answer in zip(chosen, answers, strict=True)]
        return _json({"angles": angles, "curves": curves})

    @app.get("/api/curve", response_model=schemas.CurveResponse, responses=openapi.work_errors(), tags=["predictions"])
    async def curve(
        model: Annotated[str | None, Query(description="Name of the model.")] = None,
        points: Annotated[int, Query(ge=2, le=1_000_000, description="Number of inputs.")] = min(200, limits.points),
        samples: Annotated[int, Query(ge=1, le=1_000_000, description="Number of end-times.")] = min(10, limits.samples),
    ) -> Response:
        """A regression model of one input over the range of its data and beside it."""
        async with asyncio.timeout(limits.seconds):
            trained = service.model(model)
            explore.check_curve(trained)
            service.check_limit("points", points)
            service.check_limit("samples", samples)
            return _json(await service.alone(partial(explore.curve, trained, points, samples)))
