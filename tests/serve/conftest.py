from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the server needs the extra serve")

from ltnode.serve import Limits, create_app
from ltnode.trained import TrainedModel
from serve.serving import classifier, line

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Starlette recommends another client library
    from starlette.testclient import TestClient


@pytest.fixture(scope="session")
def trained() -> dict[str, TrainedModel]:
    """Models by name: LT-NODE, NODE, ALT-NODE, an SDE-Net on 28x28 images, and a 1-D regression model."""
    models = [
        classifier("lt"),
        classifier("node", "node", point=None),
        classifier("alt", "alt-node"),
        classifier("sde", "sde-net"),
        line(),
    ]
    return {model.name: model for model in models}


@pytest.fixture(scope="session")
def app(trained: dict[str, TrainedModel]) -> Any:
    return create_app(list(trained.values()), Limits(images=16))


@pytest.fixture(scope="session")
def client(app: Any) -> Iterator[TestClient]:
    """A client of an application that runs during all tests; exceptions of the server become answers with status 500."""
    with TestClient(app, "http://localhost", raise_server_exceptions=False) as started:
        yield started
