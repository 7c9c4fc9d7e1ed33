"""The application: paths, their descriptions, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request, Response
from fastapi.responses import FileResponse, PlainTextResponse
from pydantic_core import to_json
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException
from starlette.staticfiles import StaticFiles

from ltnode._version import __version__
from ltnode.errors import InputError
from ltnode.inference import TrainedModel
from ltnode.serve import explore, failures, openapi, schemas
from ltnode.serve.failures import ApiError
from ltnode.serve.guard import Guard
from ltnode.serve.inputs import RawBatch, array_batch, from_base64, image_batch, one_batch, parse
from ltnode.serve.limits import Limits
from ltnode.serve.samples import samples
from ltnode.serve.service import Service

PAGE = Path(__file__).parent / "page"
_INLINE_BYTES = 64 * 1024
"""Bodies up to this size are parsed in the event loop: handing them over would take longer."""


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
    openapi.complete(app, with_token=token is not None)
    return app


def _json(value: Any, status: int = 200) -> Response:
    return Response(to_json(value, inf_nan_mode="constants"), status, media_type="application/json")


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


def _add_api(app: FastAPI, service: Service) -> None:  # noqa: PLR0915  (a list of paths reads best in one place)
    limits = service.limits

    async def body_of(request: Request, schema: type[schemas.Parsed]) -> schemas.Parsed:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise ApiError(415, "unsupported_media_type", f"send the content type application/json, not {kind[:80] or 'none'}")
        body = await request.body()
        return parse(body, schema) if len(body) <= _INLINE_BYTES else await service.aside(partial(parse, body, schema))

    async def asked_inputs(request: Request) -> tuple[TrainedModel, RawBatch, int]:
        """Model, inputs and number of samples of a prediction, from JSON or from a form with files."""
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() == "multipart/form-data":
            return await form_inputs(request)
        asked = await body_of(request, schemas.PredictRequest)
        trained = service.model(asked.model)
        service.check_limit("samples", asked.samples)
        if (asked.inputs is None) == (asked.images is None):
            raise InputError("give either inputs (arrays) or images (files in base64)")
        service.check_limit("images", len(asked.inputs or asked.images or ()))
        if asked.inputs is not None:
            if not asked.inputs:
                raise InputError("inputs is empty: give at least one")
            work: Callable[[], RawBatch] = partial(array_batch, asked.inputs, trained)
            small = len(asked.inputs) == 1
            return trained, work() if small else await service.aside(work), asked.samples
        texts = asked.images or []
        return (
            trained,
            await service.aside(lambda: image_batch([from_base64(text, limits) for text in texts], trained, limits)),
            asked.samples,
        )

    async def form_inputs(request: Request) -> tuple[TrainedModel, RawBatch, int]:
        try:
            form = await request.form(max_files=limits.images, max_fields=8, max_part_size=4096)
        except MultiPartException as error:
            raise ApiError(400, "bad_form", f"the form cannot be read: {error.message}") from None
        try:
            known = {"file", "model", "samples"}
            strange = sorted(set(form) - known)
            if strange:
                raise InputError(f"unknown field {strange[0][:80]!r}; a form has file, model and samples")
            files = form.getlist("file")
            if not files or not all(isinstance(file, UploadFile) for file in files):
                raise InputError("a form needs at least one part 'file' with a file name: curl -F file=@digit.png")
            name, count = form.get("model"), form.get("samples", "10")
            if isinstance(name, UploadFile) or not isinstance(count, str) or not (count.isdecimal() and 0 < len(count) < 8):
                raise InputError("model must be a text and samples a whole number")
            trained = service.model(name or None)
            asked = schemas.PredictRequest(samples=max(int(count), 0)) if int(count) else None
            if asked is None:
                raise InputError("samples must be at least 1")
            service.check_limit("samples", asked.samples)
            contents = [await file.read() for file in files if isinstance(file, UploadFile)]
        finally:
            await form.close()
        return trained, await service.aside(lambda: image_batch(contents, trained, limits)), asked.samples

    @app.get("/api/models", response_model=schemas.ModelsResponse, responses=openapi.errors(), tags=["models"])
    async def list_models() -> Response:
        """The models, their end-times and the sample pictures that fit them."""
        return _json({"models": [explore.describe_model(trained) for trained in service.models.values()]})

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
            trained, batch, count = await asked_inputs(request)
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
            asked = await body_of(request, schemas.TrajectoryRequest)
            trained = service.model(asked.model)
            explore.check_latent_time(trained)
            explore.check_change(trained, asked.change)
            service.check_limit("points", asked.points)
            service.check_limit("samples", asked.samples)
            batch = await service.aside(partial(one_batch, asked, trained, limits))
            work = partial(explore.trajectory, trained, batch.raw, asked.change, asked.points, asked.samples)
            found = await service.alone(trained, work)
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
            asked = await body_of(request, schemas.SweepRequest)
            service.check_limit("models", len(asked.models))
            service.check_limit("angles", len(asked.angles))
            service.check_limit("samples", asked.samples)
            chosen = [service.model(name) for name in asked.models]
            for trained in chosen:
                explore.check_sweep(trained, chosen[0])
            batch = await service.aside(partial(one_batch, asked, chosen[0], limits))
            turned = await service.aside(partial(explore.turned, batch.raw, asked.angles))
            answers = await asyncio.gather(*(service.predict(trained, turned, asked.samples) for trained in chosen))
        curves = [explore.sweep_curve(trained, answer.rows) for trained, answer in zip(chosen, answers, strict=True)]
        return _json({"angles": asked.angles, "curves": curves})

    @app.get("/api/curve", response_model=schemas.CurveResponse, responses=openapi.work_errors(), tags=["predictions"])
    async def curve(
        model: Annotated[str | None, Query(description="Name of the model.")] = None,
        points: Annotated[int, Query(ge=2, le=1_000_000, description="Number of inputs.")] = 200,
        samples: Annotated[int, Query(ge=1, le=1_000_000, description="Number of end-times.")] = 10,
    ) -> Response:
        """A regression model of one input over the range of its data and beside it."""
        async with asyncio.timeout(limits.seconds):
            trained = service.model(model)
            explore.check_curve(trained)
            service.check_limit("points", points)
            service.check_limit("samples", samples)
            return _json(await service.alone(trained, partial(explore.curve, trained, points, samples)))
