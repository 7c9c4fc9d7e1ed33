"""What the server answers: one pydantic model per kind of answer, which also describes it in /openapi.json."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from ltnode.trained import PredictionRow


class Answer(BaseModel):
    """An answer or a part of one. NaN and infinity are not JSON, so that building an answer with them fails."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, protected_namespaces=())


class ErrorDetail(Answer):
    """What went wrong."""

    code: str = Field(description="One word for programs.")
    reason: str = Field(description="One sentence for people.")


class ErrorAnswer(Answer):
    """Every answer that is not a success."""

    error: ErrorDetail


class HealthAnswer(Answer):
    """The server runs."""

    status: Literal["ok"] = "ok"
    models: int = Field(description="Number of models.")
    queue: int = Field(description="Number of requests that wait for a model.")


class Density(Answer):
    """A probability density of the end-time."""

    t: list[float]
    density: list[float]


class EndTimeInfo(Answer):
    """The end-time of a model."""

    kind: Literal["fixed", "uniform", "gamma", "mixture", "amortized", "none"] = "none"
    window: tuple[float, float] | None = None
    facts: dict[str, float] = {}


class SampleInfo(Answer):
    """A sample image, at /api/samples/{id}.png."""

    id: str
    title: str
    label: str | None = Field(description="Name of the correct class; null if there is no correct answer.")


class FamiliarityInfo(Answer):
    """What a model knows about familiar inputs."""

    n_calibration: int = Field(description="Number of calibration examples among which distances are ranked.")
    false_alarm_rate: float
    problem: str | None = Field(description="Why no input can be called unfamiliar; null if inputs can be.")


class ColumnInfo(Answer):
    """A column of a table that a model takes."""

    name: str
    kind: Literal["number", "category", "boolean", "date"]
    typical: float | str | bool | None = Field(description="Median of the training rows, or the most frequent category.")
    low: float | str | None = Field(description="Smallest number or first date of the training rows.")
    high: float | str | None
    categories: list[str] = Field(description="Categories that training knew, the most frequent first.")
    missing: bool = Field(description="Whether cells were missing in training.")


class ModelInfo(Answer):
    """A model that the server predicts with."""

    name: str
    title: str = Field(description="Name for people, such as LT-NODE, CIFAR10.")
    task: Literal["classification", "regression"]
    kind: Literal["image", "vector", "table"]
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    data: str | None
    end_time: EndTimeInfo
    posterior: Density | None = Field(description="Posterior of an end-time that all inputs share; null without one.")
    operating_point: dict[str, Any] | None
    familiarity: FamiliarityInfo | None = Field(description="Null if predictions have no distance.")
    samples: list[SampleInfo]
    columns: list[ColumnInfo] | None = Field(None, description="Columns of a model of tables; null for other models.")
    target: str | None = Field(None, description="Column that a model of tables predicts; null for other models.")


class ModelsAnswer(Answer):
    """All models."""

    models: list[ModelInfo]


class FamiliarityFields(Answer):
    """How familiar an input is; null for models whose familiarity was not fitted."""

    distance: float | None = Field(description="Distance from the training inputs, larger = less familiar.")
    familiarity: float | None = Field(description="Its rank among calibration examples, a p-value in (0, 1].")
    unfamiliar: bool | None = Field(description="Whether the familiarity is at most the false-alarm rate.")


class ClassificationRow(FamiliarityFields):
    """Prediction of a classifier for one input; entropies in nats."""

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


class RegressionRow(FamiliarityFields):
    """Prediction of a regression model for one input."""

    task: Literal["regression"]
    mean: float
    std: float
    noise_std: float
    interval: tuple[float, float] = Field(description="Central 90 % interval.")
    end_time: tuple[float, float, float] | None = Field(description="5, 50 and 95 % quantiles.")


Row = Annotated[ClassificationRow | RegressionRow, Field(discriminator="task")]
_ROWS: TypeAdapter[list[ClassificationRow | RegressionRow]] = TypeAdapter(list[Row])


def prediction_rows(rows: list[PredictionRow]) -> list[ClassificationRow | RegressionRow]:
    """Convert the rows of predictions to those of an answer."""
    return _ROWS.validate_python([row.to_json() for row in rows])


class PredictAnswer(Answer):
    """Predictions in the order of the inputs."""

    model: str
    predictions: list[Row]
    evaluations: int = Field(description="Field evaluations of the one solve behind them; 0 for models without a solve.")
    notes: list[str]


class PathProfile(Answer):
    """Where the path leaves known ground: the distance of its state from those of training inputs over time."""

    t: list[float]
    distance: list[float] = Field(description="Root mean square deviation in standard deviations: about 1 for training inputs.")


class TrajectoryAnswer(Answer):
    """The prediction that the model would give if the ODE stopped at t."""

    model: str
    t: list[float]
    probs: list[list[float]] | None = Field(description="Class probabilities at each t; null for regression.")
    means: list[float] | None = Field(description="Means at each t; null for classification.")
    posterior: Density | None = Field(description="Posterior of the end-time for this input; null if it is fixed.")
    times: list[float] = Field(description="The end-times that the prediction averages.")
    prediction: Row
    profile: PathProfile | None = Field(description="Null if predictions have no distance.")
    explanation: dict[str, Any] | None = Field(description="What makes the input unfamiliar; null unless asked for and known.")
    evaluations: int
    image: str | None = Field(description="The changed input that the network receives: a PNG in base64; null for vectors.")
    notes: list[str]


class SweepCurve(Answer):
    """Predictions of one model over the angles."""

    model: str
    probability: list[float] = Field(description="Probability of the class predicted without rotation.")
    labels: list[int]
    entropy: list[float]
    epistemic: list[float]
    familiarity: list[float | None]
    unfamiliar: list[bool | None]


class SweepAnswer(Answer):
    """Predictions of a rotated image by several models."""

    angles: list[float] = Field(description="Without repetitions; fewer than requested if the time for a sweep ended.")
    curves: list[SweepCurve]
    notes: list[str] = []


class Points(Answer):
    """Points of the plane."""

    x: list[float]
    y: list[float]


class CurveAnswer(Answer):
    """A regression model with one input over an interval."""

    model: str
    x: list[float]
    mean: list[float]
    std: list[float]
    noise_std: float
    members: list[list[float]]
    points: Points | None = Field(description="Training points, if the data set is generated.")


class EffectAnswer(Answer):
    """Predictions of one row over the values of one column."""

    model: str
    column: str
    kind: Literal["number", "category", "boolean", "date"]
    what: str = Field(description="What the curve shows: the target, or the probability of the class of the row.")
    values: list[float | str | bool] = Field(description="Values of the column; dates as YYYY-MM-DD.")
    mean: list[float]
    low: list[float] = Field(description="Lower end of the 90 % interval, or the 5 % quantile over the members.")
    high: list[float]
    familiarity: list[float] | None = Field(description="Null if it is not known.")
