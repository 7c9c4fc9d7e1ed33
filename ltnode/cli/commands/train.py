"""``ltnode train``: train one model on one data set, from one seed, concurrently from several, or an ensemble."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from ltnode import data as data_sets
from ltnode.cli import console
from ltnode.cli.engine_options import Address, Jobs, OptionalEngine, Threads
from ltnode.cli.own_data import TableOptions, say_folder, say_table
from ltnode.cluster.data_source import Source
from ltnode.cluster.elsewhere import train_jobs
from ltnode.cluster.engines import make_executor
from ltnode.cluster.executor import check_engine
from ltnode.data import Dataset
from ltnode.data.own import is_path, load_path
from ltnode.errors import ConfigError
from ltnode.fitting import fit, fit_members, fit_seeds
from ltnode.hub import locate
from ltnode.models import MODELS, PRESETS, Model, build
from ltnode.trained.own_data import is_table
from ltnode.training import Run, TrainConfig, train_preset
from ltnode.training.convergence import not_converged
from ltnode.training.engine import seed_folder
from ltnode.training.own_tables import provisional_config
from ltnode.training.transfer import start_from

DATA_SETS = [name for name in data_sets.names() if name != "gap"]
"""Names of the data sets; "gap" is another name of "synthetic"."""
EXAMPLES = (
    "ltnode train --model lt-node --data synthetic --seed 7 --out runs/x",
    "ltnode train --data sales.csv --target price --group customer --out runs/sales",
    "ltnode train --model alt-node --data cifar10 --preset paper --set epochs=100 --out runs/cifar --resume",
    "ltnode train --data photos --image-size 64 --out runs/photos",
    "ltnode train --data more-photos --init runs/photos --freeze stem --class-weights balanced --out runs/more",
    "ltnode train --model lt-node --data cifar10 --seeds 0-4 --out runs/cifar",
    "ltnode train --model lt-node --data cifar10 --members 5 --out runs/cifar-ensemble",
    "ltnode train --model lt-node --data cifar10 --members 5 --engine ray --address auto --out runs/cifar-ensemble",
)


def train(
    model: Annotated[
        str | None, typer.Option(help=f"One of {', '.join(MODELS)}; by default lt-node for data of your own.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help=f"One of {', '.join(DATA_SETS)}; a table: a .csv, .tsv, .parquet or .npz file; or a folder of images, CLASS/* "
            "or train/CLASS/*, with val/ and test/ beside train/ if you have them."
        ),
    ] = None,
    target: Annotated[str | None, typer.Option(help="Table: the column to predict.")] = None,
    task: Annotated[str | None, typer.Option(help="Table: classification or regression; by default inferred.")] = None,
    group: Annotated[
        str | None, typer.Option(help="Table: column whose equal values keep rows in one part, such as a customer.")
    ] = None,
    ignore: Annotated[
        list[str] | None, typer.Option(help="Table: a column that is not used; can be repeated.", metavar="COLUMN")
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(
            help="Table: number, category, boolean or date, such as zip=category; can be repeated.", metavar="COLUMN=KIND"
        ),
    ] = None,
    test: Annotated[Path | None, typer.Option(help="Table of test rows; by default they are drawn.")] = None,
    test_fraction: Annotated[float | None, typer.Option(help="Table: share of test rows that are drawn; by default 0.2.")] = None,
    image_size: Annotated[
        int | None, typer.Option(help="Folder: height and width to which images are cropped and scaled.", min=8)
    ] = None,
    preset: Annotated[str | None, typer.Option(help=f"One of {', '.join(PRESETS)}; by default 'default'.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of weights, data order and end-times; by default 0.", min=0)] = None,
    seeds: Annotated[
        str, typer.Option(help="Several concurrent runs in one process, such as 0-4; the folders are OUT-seedN.")
    ] = "",
    members: Annotated[
        int | None,
        typer.Option(
            help="An ensemble of this many networks, trained concurrently into one run folder; seeds from --seed on.", min=2
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; by default runs/DATA-MODEL-seedN.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out, or start it if there is none.")] = False,
    config: Annotated[Path | None, typer.Option(help="TOML file with a training configuration.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change one value, such as lr=0.05; can be repeated."),
    ] = None,
    init: Annotated[
        Path | None,
        typer.Option(
            help="Run folder or model by name whose weights the training starts from, wherever they fit.", metavar="RUN"
        ),
    ] = None,
    freeze: Annotated[
        list[str] | None, typer.Option(help="Part that is not trained, such as stem; can be repeated.", metavar="PART")
    ] = None,
    class_weights: Annotated[
        str | None, typer.Option(help="balanced: draw every class equally often, however many examples it has.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N; by default auto.")] = None,
    limit: Annotated[int | None, typer.Option(help="Use only this many training examples.", min=1)] = None,
    engine: OptionalEngine = None,
    address: Address = None,
    jobs: Jobs = None,
    threads: Threads = 1,
) -> None:
    """Train a model and write a run folder: configuration, log, checkpoints, the model, and its provenance.

    A table has one row per line and the names of the columns in the first line. The kinds of its columns and the task are
    inferred and shown, the model is lt-node unless --model names another one, and predictions are in the units of the target.
    The files of a folder of images are checked first; those of a large one are read while training.

    Options on the command line override those of --config, which override those of the preset. A classifier that is trained with
    --set validation_fraction=0.1 also gets an operating point.
    """
    options = {
        "model": model, "data": data, "preset": preset, "seed": seed, "device": device, "limit": limit,
        "init": None if init is None else locate(init).as_posix(), "frozen": freeze or None, "class_weights": class_weights,
    }  # fmt: skip
    if seeds and seed is not None:
        raise ConfigError("--seed and --seeds cannot be combined: --seeds 0-4 trains five runs, --seed 0 trains one")
    if seeds and members:
        raise ConfigError("--seeds and --members cannot be combined: --seeds 0-4 gives five models, --members 5 one ensemble")
    if engine is not None and not members:
        raise ConfigError("--engine trains the networks of an ensemble elsewhere: add --members 5, or use ltnode sweep")
    check_engine(engine or "local", address)
    table = TableOptions(target, task, group, tuple(ignore or ()), tuple(kind or ()), test, test_fraction)
    chosen, loaded, source = _chosen(
        config, {key: value for key, value in options.items() if value is not None}, settings or (), table, image_size
    )
    base = out or Path("runs") / (
        f"{Path(chosen.data or loaded.name).stem}-{chosen.model}" + (f"-ensemble{members}" if members else "")
    )
    several = console.numbers(seeds) if seeds else []
    one = out or seed_folder(base, chosen.seed)
    folders = [seed_folder(base, number) for number in several] or [one]

    def network(number: int) -> Model:
        made = build(chosen.model, loaded, chosen.preset or "default", seed=number, **chosen.model_options)  # type: ignore[arg-type]
        if chosen.init is not None:
            kept = start_from(made, chosen.init)
            fresh = f"; new weights in {', '.join(kept)}" if kept else ""
            console.say(f"Weights of {chosen.init}{fresh}")
        return made

    places = ", ".join(str(folder) for folder in folders)
    console.say(f"Training {chosen.model} on {loaded.name} ({loaded.n_train} examples) in {places}")
    with console.resumable(f"The checkpoint is in {places}: run the same command with --resume to continue."):
        if members and engine:
            with make_executor(engine, address=address, jobs=jobs, threads=threads, device=chosen.device) as executor:
                elsewhere = partial(train_jobs, executor=executor, threads=threads, source=source)
                runs = [fit_members(network, loaded, chosen, members, one, resume=resume, train=elsewhere)]
        elif members:
            runs = [fit_members(network, loaded, chosen, members, one, resume=resume)]
        elif several:
            runs = fit_seeds(network, loaded, chosen, several, base, resume=resume)
        else:
            runs = [fit(network(chosen.seed), loaded, chosen, one, resume=resume)]
    for run, folder in zip(runs, folders, strict=True):
        report_run(run, folder)


def _chosen(
    file: Path | None, options: dict[str, Any], settings: Sequence[str], table: TableOptions, image_size: int | None
) -> tuple[TrainConfig, Dataset, Source]:
    """The configuration of a command line, its data (a built-in data set, a table or a folder), and how others load the same."""
    named = {**({} if file is None else read_values(file)), **options}
    data = named.get("data")
    if not is_table(data):
        table.require_none(data)
    if image_size is not None and (data is None or is_table(data) or not is_path(data)):
        raise ConfigError(f"--image-size belongs to folders of images, and --data {data} is none")
    if data is None or not (is_table(data) or is_path(data)):
        config = configuration(file, options, settings)
        assert config.data is not None
        return config, data_sets.load(config.data), Source(config.data)
    named.setdefault("model", "lt-node")
    if is_table(data):
        provisional = provisional_config(named["model"], named.get("preset", "default"), named).with_overrides(settings)
        source = Source(data, table.of(data), split_seed=provisional.parts_seed)
        loaded = table.of(data).load(data, provisional)
        say_table(loaded, task_given=table.task is not None)
    else:
        source = Source(data, image_size=image_size)
        loaded = load_path(data, size=image_size)
        say_folder(loaded)
    named["data"] = loaded.name
    chosen = train_preset(named["model"], loaded, named.get("preset", "default")).replace(**named).with_overrides(settings)
    return chosen, loaded, source


def configuration(file: Path | None, options: dict[str, Any], settings: Sequence[str]) -> TrainConfig:
    """The configuration of a command line: the preset, changed by a TOML file, by options, by ``key=value`` settings."""
    values = {} if file is None else read_values(file)
    named = {**values, **options}
    for key in ("model", "data"):
        if key not in named:
            raise ConfigError(f"--{key} is missing; for example: ltnode train --model lt-node --data synthetic")
    base = train_preset(named["model"], named["data"], named.get("preset", "default"))
    return base.replace(**values).replace(**options).with_overrides(settings)


def read_values(file: Path) -> dict[str, Any]:
    """Return what a TOML file says, after checking that it is a configuration."""
    TrainConfig.from_toml(file)  # checks the file and reports what is wrong with it
    return tomllib.loads(file.read_text(encoding="utf-8"))


def report_run(run: Run, folder: Path) -> None:
    """Show how a training ended, and where its model is."""
    last = run.history[-1] if run.history else {}
    facts: dict[str, str] = {"steps": str(run.results["steps"]), "seconds": f"{run.results['provenance']['wall_time_s']:.0f}"}
    for name in ("loss", "expected_log_likelihood", "kl"):
        if name in last:
            facts[name.replace("_", " ")] = f"{last[name]:.4g}"
    for group in ("learnt", "validation"):
        facts |= {f"{group} {name}": f"{value:.4g}" for name, value in last.get(group, {}).items()}
    console.facts(facts)
    problem = not_converged(run.history)
    if problem is not None:
        console.warn(f"{problem}, for example with --set epochs={2 * run.config.epochs}")
    console.say(f'{run.status.value}: the model is in {folder}; load it with ltnode.load("{folder.as_posix()}")')
