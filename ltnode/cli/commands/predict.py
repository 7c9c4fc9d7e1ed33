"""``ltnode predict``: predict images, arrays and tables with a trained model."""

from __future__ import annotations

import csv
import io
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import typer

from ltnode import files
from ltnode.cli import console
from ltnode.cli.batch import predict_files
from ltnode.cli.engine_options import Address, Engine, Jobs, Threads
from ltnode.cli.run_folder import RunFolder
from ltnode.cluster.batch_prediction import BatchOptions
from ltnode.errors import InputError, LTNodeError
from ltnode.hub import locate
from ltnode.progress import progress_bar
from ltnode.trained import Explanation, PredictionRow, TrainedModel, explain
from ltnode.trained.inputs import Batch, find_files
from ltnode.trained.model import BATCH
from ltnode.typing import Tensor

EXAMPLES = (
    "ltnode predict lt-node-mnist digit.png",
    "ltnode predict runs/x points.csv --out predictions.csv",
    "ltnode predict lt-node-cifar10 photos/ --top 3 --json",
    "ltnode predict runs/x points.csv --explain flagged",
    "ltnode predict runs/x --input 'rows/*.parquet' --output predictions --engine ray",
)
_ERROR = 2
_SHOWN = 200
"""Largest number of rows in the printed table; files contain all rows."""
Explain = Literal["none", "flagged", "all"]


@dataclass(frozen=True)
class _Named:
    """The prediction of one input, the name of the input, the conversions that it needed, and what makes it unfamiliar.

    The input itself is kept until it was explained.
    """

    name: str
    raw: Tensor | None
    row: PredictionRow
    notes: tuple[str, ...]
    columns: tuple[str, ...]
    explanation: Explanation | None = None


def predict(
    run: RunFolder,
    inputs: Annotated[
        list[Path] | None,
        typer.Argument(help="Images, folders of images, .npy arrays, tables (.csv, .tsv, .parquet, .npz).", metavar="INPUT"),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Also write all predictions to this .json or .csv file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    samples: Annotated[int, typer.Option(help="End-times per prediction.", min=1)] = 10,
    top: Annotated[int, typer.Option(help="Show this many of the most probable classes.", min=1)] = 1,
    false_alarm_rate: Annotated[
        float | None, typer.Option(help="Familiarity at or below which inputs are called unfamiliar; by default that of the run.")
    ] = None,
    explanations: Annotated[
        Explain, typer.Option("--explain", help="Say what makes inputs unfamiliar: columns of a table, or where in an image.")
    ] = "none",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    data: Annotated[
        str | None, typer.Option(help="Data set of the training, for a saved model that does not record its normalisation.")
    ] = None,
    batch: Annotated[
        list[str] | None,
        typer.Option("--input", help="Batch prediction: a folder of images or Parquet files, or *.parquet; can be repeated."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Folder for the Parquet files of a batch prediction; an interrupted one continues.")
    ] = None,
    columns: Annotated[str, typer.Option(help="Columns of the Parquet files that the model takes: a,b,c.")] = "",
    engine: Engine = "local",
    address: Address = None,
    jobs: Jobs = None,
    threads: Threads = 1,
) -> None:
    """Predict images, arrays and tables: class, probability, uncertainty, familiarity, and flags.

    Images of any size are converted to the network's input, and every conversion is reported. An input that cannot be used is
    reported, the others are predicted, and the exit status is 2. With --input and --output, millions of inputs are predicted
    block by block with bounded memory, in several processes or on a Ray cluster.
    """
    if batch or output is not None:
        if not batch or output is None or inputs or out is not None:
            raise InputError("a batch prediction needs --input and --output, and neither INPUT nor --out")
        options = BatchOptions(samples, tuple(console.words(columns)), None, device, false_alarm_rate)
        predict_files(locate(run), batch, output, options, engine, address, jobs, threads)
        return
    if not inputs:
        raise InputError("there is nothing to predict: name images, .npy or .csv files, or use --input and --output")
    if out is not None and out.suffix.lower() not in (".json", ".csv"):
        raise InputError(f"--out must end in .json or .csv, not {out.name!r}")
    trained = TrainedModel.open(locate(run), device, data).with_false_alarm_rate(false_alarm_rate)
    found, bad = _files(inputs)
    predictions: list[_Named] = []
    usable = 0
    groups = [found[start : start + BATCH] for start in range(0, len(found), BATCH)]
    with progress_bar("predict", len(found), "files", shown=len(groups) > 1) as advance:
        for group in groups:  # of thousands of photos, only those of one group are in memory
            batches, unusable = _read(group, trained)
            predictions += _explained(trained, _predict(trained, batches, samples, show=len(groups) == 1), explanations)
            usable, bad = usable + len(batches), bad + unusable
            advance(len(group))
    if trained.flag_problem is not None:
        console.warn(trained.flag_problem)
    content = _document(trained, predictions, samples, top)
    if out is not None:
        _write(out, content, trained)
    if as_json:
        console.say(json.dumps(content, indent=2, allow_nan=False))
    elif predictions:
        _show(trained, predictions, top)
        if out is not None:
            console.say(f"The predictions are in {out}")
    if bad:
        console.error(f"{bad} of {bad + usable} inputs could not be used; the reasons are above")
        raise typer.Exit(_ERROR)


def _files(inputs: Sequence[Path]) -> tuple[list[Path], int]:
    """The files to predict, and the number of paths without any, which are reported."""
    found: list[Path] = []
    bad = 0
    for path in inputs:
        try:
            found += find_files(path)
        except LTNodeError as error:
            console.error(str(error))
            bad += 1
    return found, bad


def _read(paths: Sequence[Path], trained: TrainedModel) -> tuple[list[Batch], int]:
    """The usable inputs, and the number of the others, which are reported."""
    batches: list[Batch] = []
    bad = 0
    for path in paths:
        try:
            batches.append(trained.read(path))
        except InputError as error:
            console.error(str(error))
            bad += 1
    return batches, bad


def _predict(trained: TrainedModel, batches: Sequence[Batch], samples: int, *, show: bool) -> list[_Named]:
    # Files of one dtype are predicted together, so that thousands of images form large batches.
    rows: dict[int, list[PredictionRow]] = {}
    with progress_bar("predict", sum(len(batch.names) for batch in batches), shown=show) as advance:
        for dtype in dict.fromkeys(batch.raw.dtype for batch in batches):
            alike = [position for position, batch in enumerate(batches) if batch.raw.dtype == dtype]
            together = iter(trained.rows(torch.cat([batches[position].raw for position in alike]), samples, advance))
            rows |= {position: list(itertools.islice(together, len(batches[position].names))) for position in alike}
    return [
        _Named(name, raw, row, (*batch.notes, *batch.row_notes.get(number, ())), batch.columns)
        for position, batch in enumerate(batches)
        for number, (name, raw, row) in enumerate(zip(batch.names, batch.raw, rows[position], strict=True))
    ]


def _explained(trained: TrainedModel, predictions: Sequence[_Named], which: Explain) -> list[_Named]:
    """The predictions, the flagged ones or all of them with an explanation."""
    chosen = [one for one in predictions if which == "all" or (which == "flagged" and one.row.unfamiliar)]
    if not chosen:
        return [replace(one, raw=None) for one in predictions]
    explained = {}
    with progress_bar("explain", len(chosen)) as advance:
        for one in chosen:
            assert one.raw is not None
            explained[id(one)] = explain(trained, one.raw[None])[0]
            advance(1)
    return [replace(one, raw=None, explanation=explained.get(id(one))) for one in predictions]


def _best(trained: TrainedModel, row: PredictionRow, top: int) -> list[dict[str, Any]]:
    """The most probable classes; among equal probabilities, the lower label comes first."""
    probs = row.probs or ()
    order = sorted(range(len(probs)), key=lambda label: -probs[label])[:top]
    return [{"label": label, "name": trained.class_names[label], "probability": probs[label]} for label in order]


def _document(trained: TrainedModel, predictions: Sequence[_Named], samples: int, top: int) -> dict[str, Any]:
    point = trained.operating_point
    rows = []
    for one in predictions:
        best = {"top": _best(trained, one.row, top)} if trained.task == "classification" and top > 1 else {}
        why = {} if one.explanation is None else {"explanation": one.explanation.to_json(one.columns)}
        rows.append({"input": one.name, **one.row.to_json(), **best, **why, "notes": list(one.notes)})
    return {
        "model": trained.name,
        "task": trained.task,
        "classes": list(trained.class_names),
        "samples": samples,
        "operating_point": None if point is None else point.to_json(),
        "false_alarm_rate": trained.false_alarm_rate,
        "calibration": None if trained.calibration is None else trained.calibration.to_json(),
        "predictions": rows,
    }


def _write(path: Path, content: dict[str, Any], trained: TrainedModel) -> None:
    if path.suffix.lower() == ".json":
        text = json.dumps(content, indent=2, allow_nan=False) + "\n"
    else:
        file = io.StringIO()
        flat = [_flat(row, trained.class_names) for row in content["predictions"]]
        columns = dict.fromkeys(key for row in flat for key in row)
        writer = csv.DictWriter(file, list(columns) or ["input"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(flat)
        text = file.getvalue()
    files.write_bytes(path, text.encode())


def _flat(row: dict[str, Any], classes: Sequence[str]) -> dict[str, Any]:
    """A row of a CSV file: one column per class probability, quantile and end of an interval; flags are 0 or 1."""
    flat: dict[str, Any] = {}
    for key, value in row.items():
        match key:
            case "probs":
                flat |= {f"p({name})": p for name, p in zip(classes, value, strict=True)}
            case "end_time":
                flat |= dict(zip(("t05", "t50", "t95"), value or ("", "", ""), strict=True))
            case "interval":
                flat |= {"low90": value[0], "high90": value[1]}
            case "notes":
                flat[key] = "; ".join(value)
            case "explanation":
                flat[key] = value["description"]
            case "top" | "task":
                continue
            case _:
                flat[key] = "" if value is None else int(value) if isinstance(value, bool) else value
    return flat


def _show(trained: TrainedModel, predictions: Sequence[_Named], top: int) -> None:
    shown = predictions[:_SHOWN]
    end_times = {one.row.end_time for one in predictions}
    per_input = len(end_times) > 1
    room = max(16, console.out().width - (94 if per_input else 77))
    header: tuple[str, ...]
    if trained.task == "classification":
        header = ("Input", "Class", "Proba-\nbility", "Entropy", "alea-\ntoric", "epis-\ntemic", "Famili-\narity", "Flag")
        lines = [_class_line(trained, one, top, room) for one in shown]
        words: tuple[int, ...] = (0, 1, 7)
    else:
        header = ("Input", "Mean", "Std of\nthe model", "Std of\nthe noise", "90 % interval", "Famili-\narity", "Flag")
        lines = [_real_line(one, room) for one in shown]
        words = (0, 6)
    if per_input:
        header = (*header, "End-time\n5 / 50 / 95 %")
        lines = [(*line, _times(one.row.end_time)) for line, one in zip(lines, shown, strict=True)]
    console.table("", header, lines, words=words)
    if len(predictions) > len(shown):
        console.say(f"... and {len(predictions) - len(shown)} more: use --out FILE or --json for all of them")
    shared = None if per_input else predictions[0].row.end_time
    if shared is not None and len(set(shared)) > 1:
        console.say(f"End-time of all inputs, 5 / 50 / 95 % quantiles: {_times(shared)}", style="dim")
    elif shared is not None:
        console.say(f"End-time of all inputs: {_times(shared[:1])}", style="dim")
    by_notes: dict[tuple[str, ...], list[str]] = {}
    for one in predictions:
        by_notes.setdefault(one.notes, []).append(one.name)
    for notes, names in by_notes.items():
        if notes:
            console.say(f"{names[0] if len(names) == 1 else f'{len(names)} inputs'}: {', '.join(notes)}", style="dim")
    for one in shown:
        if one.explanation is not None:
            console.say(f"{one.name}: its distance comes from: {one.explanation.describe(one.columns)}")
    _explain_flags(trained)


def _explain_flags(trained: TrainedModel) -> None:
    """Explain the flags."""
    point = trained.operating_point
    if point is not None:
        console.say(
            f"abstain: the entropy is above {point.entropy_threshold:.3g} nats; below it, {point.accuracy_kept:.2%} of the "
            f"answers were correct, on {point.n} examples.",
            style="dim",
        )
    elif trained.task == "classification":
        console.say(f"To abstain from uncertain answers, run: ltnode operating-point {trained.path}", style="dim")
    if trained.flag_problem is None:
        rate = trained.false_alarm_rate
        console.say(
            f"unfamiliar: the familiarity is at most {rate:g}, as for at most {rate:.2g} of inputs like the "
            f"{trained.n_calibration} calibration examples.",
            style="dim",
        )


def _class_line(trained: TrainedModel, one: _Named, top: int, room: int) -> tuple[str, ...]:
    row = one.row
    best = _best(trained, row, top)
    return (
        _shortened(one.name, room),
        "\n".join(entry["name"] for entry in best),
        "\n".join(f"{entry['probability']:.4f}" for entry in best),
        *(f"{value:.4f}" for value in (row.entropy, row.aleatoric, row.epistemic)),
        *_familiarity(row),
    )


def _real_line(one: _Named, room: int) -> tuple[str, ...]:
    row = one.row
    assert row.interval is not None
    numbers = (f"{value:.4g}" for value in (row.mean, row.std, row.noise_std))
    return _shortened(one.name, room), *numbers, "{:.4g} .. {:.4g}".format(*row.interval), *_familiarity(row)


def _familiarity(row: PredictionRow) -> tuple[str, str]:
    """Familiarity and flags."""
    flags = [word for word, raised in (("abstain", row.abstain), ("unfamiliar", row.unfamiliar)) if raised]
    return "–" if row.familiarity is None else f"{row.familiarity:.3g}", " ".join(flags)


def _shortened(name: str, room: int) -> str:
    """The end of a long name, since inputs usually differ there."""
    return name if len(name) <= room else "…" + name[1 - room :]


def _times(end_time: Sequence[float] | None) -> str:
    return " / ".join(f"{t:.2f}" for t in end_time or ())
