"""The application. Each function of `Api` is the way of one kind of request to its answer; read `Api.predict` first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response
from fastapi.responses import FileResponse, PlainTextResponse
from fastapi.security import HTTPBearer
from starlette.staticfiles import StaticFiles

from ltnode._version import __version__
from ltnode.serve import answers, explore, failures, openapi
from ltnode.serve.clients import Access, Clients
from ltnode.serve.decoding import RawBatch, decode_arrays, find_sample, image_files
from ltnode.serve.failures import ApiError
from ltnode.serve.guard import Guard
from ltnode.serve.limits import Limits
from ltnode.serve.metrics import CONTENT_TYPE
from ltnode.serve.parsing import RequestParser
from ltnode.serve.requests import (
    CurveRequest,
    EffectRequest,
    OneInputRequest,
    PredictRequest,
    SweepRequest,
    TrajectoryRequest,
    check_limits,
)
from ltnode.serve.service import Service
from ltnode.serve.sweeping import sweep
from ltnode.serve.tables import check_effect, decode_rows, effect
from ltnode.trained import TrainedModel

PAGE = Path(__file__).parent / "page"


def make_app(
    models: Sequence[TrainedModel], limits: Limits, token: str | None, access: Access, clients: Clients, workers: int = 1
) -> FastAPI:
    """Build the application; see `ltnode.serve.create_app`."""
    service = Service(models, limits, workers)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.start(warm=True)
        yield
        # In a thread, because the event loop still has to deliver the last answers.
        await asyncio.to_thread(service.stop, 1.0)

    app = FastAPI(
        title="ltnode",
        version=__version__,
        description="Predictions of neural ODEs with a distribution over their end-time.",
        lifespan=lifespan,
        docs_url=None,  # Both pages would load scripts from other hosts.
        redoc_url=None,
    )
    app.state.service = service
    app.add_middleware(Guard, limits=limits, token=token, metrics=service.metrics, access=access, clients=clients)
    failures.install(app)
    app.include_router(_server_routes(service))
    app.include_router(Api(service).routes(with_token=token is not None))
    app.mount("/static", StaticFiles(directory=PAGE), name="static")
    openapi.add_limits(app, service)
    return app


class Api:
    """The paths under /api."""

    def __init__(self, service: Service) -> None:
        self.service, self.limits = service, service.limits
        self.parser = RequestParser(self.limits, [trained.shape for trained in service.models.values()], service.parse)
        self.models_answer = answers.ModelsAnswer(models=[explore.describe_model(trained) for trained in service.models.values()])

    def routes(self, with_token: bool) -> APIRouter:
        """All paths with their descriptions; the guard checks the token, ``with_token`` only documents it."""
        router = APIRouter(prefix="/api")
        token = [Depends(HTTPBearer(auto_error=False, scheme_name="token"))] if with_token else []
        work: dict[str, Any] = {"responses": openapi.errors(400, 403, 404, 408, 413, 415, 422, 503, 504), "dependencies": token}
        post: dict[str, Any] = {**work, "methods": ["POST"], "tags": ["predictions"]}
        png: openapi.Responses = {200: {"description": "A PNG file.", "content": {"image/png": {}}}, **openapi.errors(404, 422)}
        add = router.add_api_route
        add("/models", self.models, responses=openapi.errors(), dependencies=token, tags=["models"])
        add("/samples/{name}.png", self.sample_image, response_class=Response, responses=png, tags=["models"])
        add("/predict", self.predict, openapi_extra=openapi.request_body(PredictRequest, form=True), **post)
        add("/trajectory", self.trajectory, openapi_extra=openapi.request_body(TrajectoryRequest), **post)
        add("/sweep", self.sweep, openapi_extra=openapi.request_body(SweepRequest), **post)
        add("/effect", self.effect, openapi_extra=openapi.request_body(EffectRequest), **post)
        add("/curve", self.curve, tags=["predictions"], **work)
        return router

    async def predict(self, http: Request) -> answers.PredictAnswer:
        """Predictions with their uncertainty. Concurrent requests share a batch, which does not change the answers."""
        async with asyncio.timeout(self.limits.seconds):
            with ExitStack() as announced:
                announced.enter_context(self.service.batcher.expecting())
                request = await self.parser.parse_json_or_form(http)
                trained = self.service.model(request.model)
                batch, samples = await self._decode(request, trained), request.samples
                del request  # Arrays and files need not stay in memory while the batch waits.
                predicted = await self.service.predict(trained, batch.raw, samples, on_submit=announced.close)
        self.service.metrics.count_rows(trained.name, predicted.rows)
        return answers.PredictAnswer(
            model=trained.name,
            predictions=answers.prediction_rows(predicted.rows),
            evaluations=predicted.evaluations,
            notes=batch.notes,
        )

    async def trajectory(self, http: Request) -> answers.TrajectoryAnswer:
        """The prediction if the ODE stopped at t, and the posterior of the end-time."""
        async with asyncio.timeout(self.limits.seconds):
            request = await self.parser.parse(http, TrajectoryRequest)
            trained = self.service.model(request.model)
            explore.check_trajectory(trained, request.change)
            batch = await self._decode(request, trained)
            return await self.service.run_alone(partial(explore.trajectory, trained, batch, request))

    async def sweep(self, http: Request) -> answers.SweepAnswer:
        """Predictions of an image that is rotated by several angles, by several models; cut to the time limit of a sweep."""
        async with asyncio.timeout(self.limits.seconds):
            request = await self.parser.parse(http, SweepRequest)
            models = [self.service.model(name) for name in dict.fromkeys(request.models)]
            explore.check_sweep(models)
            batch = await self._decode(request, models[0])
            return await sweep(self.service, models, batch.raw, request.angles, request.samples)

    async def effect(self, http: Request) -> answers.EffectAnswer:
        """The effect of one column of a table on the prediction of a row."""
        async with asyncio.timeout(self.limits.seconds):
            request = await self.parser.parse(http, EffectRequest)
            trained = self.service.model(request.model)
            column = check_effect(request, trained)
            return await self.service.run_alone(partial(effect, trained, column, request))

    async def curve(self, query: Annotated[CurveRequest, Query()]) -> answers.CurveAnswer:
        """A regression model with one input over the range of its data and on both sides of it."""
        request = check_limits(query, self.limits)
        trained = self.service.model(request.model)
        explore.check_curve(trained)
        async with asyncio.timeout(self.limits.seconds):
            return await self.service.run_alone(partial(explore.curve, trained, request.points, request.samples))

    async def models(self) -> answers.ModelsAnswer:
        """The models, their end-times and the sample images that fit them."""
        return self.models_answer

    async def sample_image(self, name: str) -> Response:
        """A sample image."""
        return FileResponse(find_sample(name).path, media_type="image/png")

    async def _decode(self, request: PredictRequest | OneInputRequest, trained: TrainedModel) -> RawBatch:
        if request.table_rows:
            return decode_rows(request.table_rows, trained)
        return (
            await self.service.decode(image_files(request, trained), trained)
            if request.has_files
            else decode_arrays(request, trained)
        )


def _server_routes(service: Service) -> APIRouter:
    router = APIRouter()

    @router.get("/", include_in_schema=False)
    async def page() -> Response:
        index = PAGE / "index.html"
        if not index.is_file():
            raise ApiError(404, "not_found", "this installation has no page; /openapi.json describes the API")
        return FileResponse(index, media_type="text/html")

    @router.get("/healthz", tags=["server"])
    async def health() -> answers.HealthAnswer:
        """The state of the server."""
        return answers.HealthAnswer(models=len(service.models), queue=len(service.batcher))

    @router.get("/metrics", response_class=PlainTextResponse, tags=["server"])
    async def metrics() -> Response:
        """Counters and histograms for Prometheus."""
        return PlainTextResponse(service.metrics.text(), media_type=CONTENT_TYPE)

    return router
