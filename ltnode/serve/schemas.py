"""What goes in and comes out, as pydantic models: they check requests and describe the interface in /openapi.json."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

_NUMBERS: dict[str, Any] = {"type": "array", "items": {"type": "number"}, "minItems": 1}
_ROWS = {"type": "array", "items": _NUMBERS, "minItems": 1}
_PLANES = {"type": "array", "items": _ROWS, "minItems": 1}
_ONE_INPUT = {
    "anyOf": [_NUMBERS, _ROWS, _PLANES],
    "description": "A vector (D), or an image (C, H, W), or (H, W) where C is 1: integers 0..255 or numbers 0..1.",
}
# The numbers are checked as one array (`ltnode.serve.inputs`): pydantic would report each of a million wrong ones.
Array = Annotated[list[Any], WithJsonSchema(_ONE_INPUT)]
Arrays = Annotated[list[Any], WithJsonSchema({"type": "array", "items": _ONE_INPUT, "minItems": 1})]
_BASE64 = {"type": "string", "contentEncoding": "base64", "description": "An image file (PNG, JPEG, ...) in base64."}
Base64 = Annotated[str, WithJsonSchema(_BASE64)]
Images = Annotated[list[Any], WithJsonSchema({"type": "array", "items": _BASE64, "minItems": 1})]
Model = Annotated[str | None, Field(description="Name of a model; may be left out where the server has only one.")]


def _whole(value: Any) -> Any:
    # For JSON 2.0 is a whole number, and some languages write it so; a text is not.
    return int(value) if isinstance(value, float) and value.is_integer() else value


# The validator stands last, so that the bounds stay those of a number in the description.
Count = Annotated[int, Field(ge=1, le=1_000_000), BeforeValidator(_whole)]
PointCount = Annotated[int, Field(ge=2, le=1_000_000), BeforeValidator(_whole)]
Seed = Annotated[int, Field(ge=0, le=2**31 - 1), BeforeValidator(_whole)]


class Parsable(BaseModel):
    """A body: unknown keys, texts in place of numbers, NaN and infinity are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=())

    @property
    def has_files(self) -> bool:
        """Whether there are pictures to decode, which takes a while."""
        return False


Parsed = TypeVar("Parsed", bound=Parsable)


class PredictRequest(Parsable):
    """Inputs to predict: either ``inputs`` or ``images``."""

    model: Model = None
    inputs: Annotated[Arrays | None, Field(description="Raw inputs, one array each.")] = None
    images: Annotated[Images | None, Field(description="Image files, any size; converted with a note.")] = None
    samples: Annotated[Count, Field(description="Number of end-times S that a prediction averages.")] = 10

    @property
    def has_files(self) -> bool:
        """Whether there are pictures to decode."""
        return self.images is not None


class Change(Parsable):
    """Changes of an image, applied in this order."""

    rotation: Annotated[float, Field(ge=0, le=180, description="Degrees, counter-clockwise.")] = 0.0
    noise: Annotated[float, Field(ge=0, le=1, description="Standard deviation of Gaussian noise; pixels span 0..1.")] = 0.0
    epsilon: Annotated[float, Field(ge=0, le=1, description="FGSM strength in units of the normalised input.")] = 0.0
    seed: Annotated[Seed, Field(description="Of the noise.")] = 0


class OneInput(Parsable):
    """An input in one of three ways."""

    input: Annotated[Array | None, Field(description="A raw input.")] = None
    image: Annotated[Base64 | None, Field(description="An image file.")] = None
    sample: Annotated[str | None, Field(description="Id of a sample picture.")] = None

    @property
    def has_files(self) -> bool:
        """Whether there is a picture to decode."""
        return self.input is None


class TrajectoryRequest(OneInput):
    """One input: exactly one of ``input``, ``image``, ``sample``."""

    model: Model = None
    change: Change = Field(default_factory=Change)
    points: Annotated[PointCount, Field(description="Number of times at which the ODE is stopped.")] = 61
    samples: Count = 10


class SweepRequest(OneInput):
    """One image, turned: exactly one of ``input``, ``image``, ``sample``."""

    models: Annotated[list[str], Field(fail_fast=True, min_length=1, description="Names of image classifiers of one shape.")]
    angles: Annotated[
        list[Annotated[float, Field(ge=-360, le=360)]], Field(fail_fast=True, min_length=1, description="Degrees.")
    ] = Field(default_factory=lambda: [float(angle) for angle in range(0, 181, 15)])
    samples: Count = 10


class ErrorDetail(BaseModel):
    """What went wrong."""

    code: str = Field(description="One word for programs.")
    reason: str = Field(description="One sentence for people.")


class ErrorResponse(BaseModel):
    """Every answer that is not a success."""

    error: ErrorDetail


class Density(BaseModel):
    """A density over the end-time."""

    t: list[float]
    density: list[float]


class EndTimeFacts(BaseModel):
    """The end-time of a model."""

    kind: Literal["fixed", "uniform", "gamma", "mixture", "amortized", "none"]
    window: tuple[float, float] | None
    facts: dict[str, float]


class SampleInfo(BaseModel):
    """A sample picture, at /api/samples/{id}.png."""

    id: str
    title: str
    label: str | None = Field(description="Name of the class it should get; null where there is no right answer.")


class ModelInfo(BaseModel):
    """A model that the server answers for."""

    name: str
    task: Literal["classification", "regression"]
    kind: Literal["image", "vector"]
    shape: list[int]
    classes: list[str]
    data: str | None
    end_time: EndTimeFacts
    posterior: Density | None = Field(description="Of the end-time that all inputs share; null where there is none.")
    operating_point: dict[str, Any] | None
    samples: list[SampleInfo]


class ModelsResponse(BaseModel):
    """All models."""

    models: list[ModelInfo]


class ClassificationRow(BaseModel):
    """Prediction of a classifier for one input; entropies in nats."""

    model_config = ConfigDict(extra="forbid")

    task: Literal["classification"]
    label: int
    name: str
    probability: float
    probs: list[float]
    entropy: float
    aleatoric: float
    epistemic: float
    end_time: tuple[float, float, float] | None = Field(description="5, 50 and 95 % quantiles.")
    abstain: bool | None = Field(description="Null without an operating point.")
    ood: bool | None = Field(description="Null without an operating point.")
    ood_score: float


class RegressionRow(BaseModel):
    """Prediction of a regression model for one input."""

    model_config = ConfigDict(extra="forbid")

    task: Literal["regression"]
    mean: float
    std: float
    noise_std: float
    interval: tuple[float, float] = Field(description="Central 90 %.")
    end_time: tuple[float, float, float] | None = Field(description="5, 50 and 95 % quantiles.")


Row = ClassificationRow | RegressionRow


class PredictResponse(BaseModel):
    """Predictions in the order of the inputs."""

    model: str
    predictions: list[Row]
    evaluations: int = Field(description="Evaluations of the field by the one solve behind them; 0 for models without one.")
    notes: list[str]


class TrajectoryResponse(BaseModel):
    """What the prediction would be if the ODE stopped at t."""

    model: str
    t: list[float]
    probs: list[list[float]] | None = Field(description="Class probabilities at each t; null for regression.")
    means: list[float] | None = Field(description="Means at each t; null for classification.")
    posterior: Density | None = Field(description="Of the end-time of this very input; null for a fixed one.")
    times: list[float] = Field(description="The end-times that the prediction averages.")
    prediction: Row
    evaluations: int
    image: str | None = Field(description="The changed input as the network sees it: a PNG in base64; null for vectors.")
    notes: list[str]


class SweepCurve(BaseModel):
    """One model over the angles."""

    model: str
    probability: list[float] = Field(description="Of the class predicted at 0 degrees.")
    labels: list[int]
    entropy: list[float]
    epistemic: list[float]
    ood: list[bool | None]


class SweepResponse(BaseModel):
    """Predictions of a turned image."""

    angles: list[float]
    curves: list[SweepCurve]


class Points(BaseModel):
    """Points of the plane."""

    x: list[float]
    y: list[float]


class CurveResponse(BaseModel):
    """A regression model of one input over an interval."""

    model: str
    x: list[float]
    mean: list[float]
    std: list[float]
    noise_std: float
    members: list[list[float]]
    points: Points | None = Field(description="Training points, where the run can tell them.")


class Health(BaseModel):
    """The server lives."""

    status: Literal["ok"]
    models: int
    queue: int
