"""The card of a model of the default recipe, and its line in the table of the zoo."""

from __future__ import annotations

from typing import Any

from ltnode import train_preset
from ltnode.report.naming import data_title, model_title
from ltnode.report.table import markdown_table
from paper.reproduce.images.zoo import DefaultEntry, read_record
from paper.reproduce.pages.zoo_text import loading, number, operating_point, percent, training

HEADER = (
    "folder",
    "error",
    "log-likelihood",
    "ECE (if perfectly calibrated)",
    "rotated log-likelihood",
    "foreign AUROC",
    "foreign FPR95",
    "test images flagged",
    "noise flagged",
    "end-time",
)
_QUALITY = {"error": "error", "log_likelihood": "log-likelihood", "brier": "Brier", "ece": "ECE"}
_FOREIGN = {"mnist": "fashion-mnist", "fashion-mnist": "mnist", "cifar10": "svhn", "svhn": "cifar10"}


def line(entry: DefaultEntry) -> list[str]:
    """The line of the model in the table of the zoo."""
    row = entry.row
    clean, foreign = row["clean"]["shown"], row["foreign"]["distance"]
    return [
        f"[`{entry.folder.name}`]({entry.folder.name}/README.md)",
        number(clean["error"], 4),
        number(clean["log_likelihood"], 3),
        f"{clean['ece']:.4f} ({clean['ece_if_calibrated']:.4f})",
        number(row["rotated"]["shown"]["log_likelihood"], 3),
        number(foreign["auroc"], 4),
        number(foreign["fpr95"], 3),
        percent(row["flagged_test"]),
        percent(min(row["made_up"][kind]["flagged"] for kind in ("uniform noise", "Gaussian noise"))),
        _end_time(entry),
    ]


def card(entry: DefaultEntry) -> str:
    """Data, training, end-time, quality, unfamiliar inputs, operating point and limits of one model."""
    config, row = entry.config, entry.row
    assert config.data is not None
    content, name = read_record(entry.folder / "config.json")["data"], data_title(config.data)
    shape = " x ".join(str(n) for n in content["input_shape"])
    one_seed = "" if "members" in row else "\nThe model has one seed: differences as small as the spread over seeds mean nothing."
    return f"""# {_title(entry)} on {name}

{loading(entry.folder)}

**Data.** {name}, official files (checksums in `config.json`), images of shape {shape}.
Of the training set, {content["n_train"]:,} images fit the weights, {content["n_validation"]:,} select (temperature, widening,
operating point), and {content["n_calibration"]:,} calibrate the familiarity. There are {content["n_test"]:,} test images.

**Training.** {_training(entry)}

**End-time.** {_end_time(entry)}.

{_quality(entry)}
{_unfamiliar(entry)}
{operating_point(entry.folder)}
**Limits.** The rate of false alarms holds on average over inputs from the source of the training data, not for shifted inputs
and not under attack. Not every foreign input is flagged (see the table), and every image is assigned a class.{one_seed}
"""


def _title(entry: DefaultEntry) -> str:
    members = entry.row.get("members")
    return _network(entry) if members is None else f"Ensemble of {len(members)} {_network(entry)}s"


def _network(entry: DefaultEntry) -> str:
    return model_title(entry.config.model_options.get("of", entry.config.model))


def _training(entry: DefaultEntry) -> str:
    config, results = entry.config, read_record(entry.folder / "results.json")
    seeds = [str(member["seed"]) for member in results.get("members", ())]
    if seeds:
        network = config.model_options["of"]
        return (
            f"Finished runs of {_network(entry)} with the seeds {', '.join(seeds)} and common held-out images as one model; "
            f"the first is [`{network}-{config.data}`](../{network}-{config.data}/README.md). Prediction grid, temperature, "
            f"widening and ranks are those of the ensemble.\nTo repeat it, run `ltnode train --model {network} --data "
            f"{config.data} --members {len(seeds)} --set precision={config.precision} --out RUN`."
        )
    assert config.model is not None and config.data is not None
    command = f"ltnode train --model {config.model} --data {config.data} --seed {config.seed} --set precision={config.precision}"
    if config.epochs != train_preset(config.model, config.data).epochs:
        command += f" --set epochs={config.epochs} --set milestones={list(config.milestones)}"
    return f"{training(config, results['provenance'])}\nTo repeat it, run `{command} --out RUN`."


def _end_time(entry: DefaultEntry) -> str:
    learnt: dict[str, float] = entry.row.get("learnt", {})
    match entry.config.model_options.get("of", entry.config.model):
        case "node":
            return "T = 1"
        case "uni-node":
            return "T ~ U(0, 3)"
        case "lt-node":
            return f"Gamma({learnt['alpha']:.2f}, {learnt['beta']:.2f}) on (0, 3)"
        case _:
            return f"q(T | x) on (0, 3): mean {learnt['mean']:.2f} over test images"


def _quality(entry: DefaultEntry) -> str:
    row = entry.row
    rows = [[f"test set, {row['n_test']:,}", *_values(row["clean"]["shown"])]]
    for kind, of in (("rotated", "{}°"), ("blurred", "severity {}")):
        settings = ", ".join(str(n) for n in row[kind]["settings"])
        rows.append([f"{kind}, mean of {of.format(settings)}", *_values(row[kind]["shown"])])
    small = entry.small_part
    # The record averages what the networks answer; the folder fits one temperature and widening for the average.
    averaged = ", for the average of the networks' predictions, each with its own temperature and widening"
    return (
        f"**Quality and calibration** (log-likelihood in nats; rotated and blurred: the first 5,000 test images). "
        f"Recorded in `benchmarks/results/zoo.json`{averaged if 'members' in row else ''}.\n\n"
        f"{markdown_table(('images', *_QUALITY.values()), rows)}\n"
        f"On the test set, a perfectly calibrated model would show an ECE of {row['clean']['shown']['ece_if_calibrated']:.4f}. "
        f"On the first {small['examples']} test images and a CPU, this folder has error {small['error']:.4f} and log-likelihood "
        f"{small['log_likelihood']:.4f} (`benchmarks/results/zoo.json`).\n"
    )


def _values(found: dict[str, Any]) -> list[str]:
    return [number(found[metric], 4) for metric in _QUALITY]


def _unfamiliar(entry: DefaultEntry) -> str:
    row = entry.row
    inputs = {data_title(_FOREIGN[row["data"]]): row["foreign"], **row["made_up"]}
    rows = [
        [
            name,
            number(found["distance"]["auroc"], 4),
            number(found["distance"]["fpr95"], 3),
            percent(found["flagged"]),
            number(found["mean_max_probability"], 3),
        ]
        for name, found in inputs.items()
    ]
    header = ("inputs", "AUROC", "FPR95", "flagged", "mean largest probability")
    return (
        f"**Unfamiliar inputs**, detected by the distance of the path. At a familiarity of at most 0.05, "
        f"{percent(row['flagged_test'])} of the test images are flagged, and of other inputs:\n\n{markdown_table(header, rows)}"
    )
