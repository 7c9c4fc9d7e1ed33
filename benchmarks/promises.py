"""What the README promises, measured: four image sets, every model, five seeds, ensembles and a distilled network.

usage: python benchmarks/promises.py STAGE --work FOLDER [--arrays DATA] [options]

Stages, in this order; each continues where it was stopped, because every training has a run folder and every result a file:
  search     weight decay of every model, chosen on held-out training images of CIFAR10 and SVHN
  train      every model on every set, five seeds, with the default preset
  distill    CIFAR10: the mean of five NODEs as the teacher of an LT-NODE
  evaluate   every run: test images, rotated, blurred, foreign and made-up ones; several processes take --part 0/4, 1/4, ...
  ensemble   five runs as one model, from the predictions that `evaluate` stored
  cost       time of a prediction, alone on the device
  summary    the record benchmarks/results/promises.json, tables, and tests of LT-NODE against NODE
  zoo        the trained models of the repository: seed 0 of every model and set, and for CIFAR10 an ensemble of NODEs and the distilled LT-NODE
"""

from __future__ import annotations

import argparse
from pathlib import Path

from promise_stages.settings import MODELS, SEARCH_DECAYS, SEARCH_SETS, SEEDS, SETS, Place

STAGES = ("search", "train", "distill", "evaluate", "ensemble", "cost", "summary", "zoo")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("--work", type=Path, required=True, help="folder of run folders and results")
    parser.add_argument("--arrays", type=Path, help="data folder; by default LTNODE_DATA")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--limit", type=int, help="number of training and of test examples, for trying the script")
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--sets", nargs="+", help="by default all; search: CIFAR10 and SVHN; distill: CIFAR10")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--at-once", type=int, default=6, help="number of trainings that take turns")
    parser.add_argument("--precision", default="bf16", choices=("fp32", "tf32", "bf16"))
    parser.add_argument("--epochs", type=int, help="instead of the preset's; milestones are scaled with it")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE", help="training setting")
    parser.add_argument("--decays", type=float, nargs="+", default=list(SEARCH_DECAYS), help="weight decays of the search")
    parser.add_argument("--searched", action="store_true", help="train, distill: weight decays that the search chose")
    parser.add_argument("--score-only", action="store_true", help="search: only score the trainings that are complete")
    parser.add_argument("--part", default="0/1", metavar="I/N", help="evaluate: which of N disjoint parts of the runs")
    parser.add_argument("--runs", type=Path, nargs="+", help="evaluate: these run folders instead of all")
    parser.add_argument("--record", type=Path, help="summary: file of the record")
    return parser.parse_args()


def main() -> None:
    o = arguments()
    place = Place(o.work, o.arrays, o.device, o.limit)
    sets = o.sets or (SEARCH_SETS if o.stage == "search" else SETS)
    if o.stage in ("search", "train", "distill"):
        _train(o, place, sets)
    elif o.stage == "evaluate":
        from promise_stages.evaluating import evaluate

        part, parts = (int(number) for number in o.part.split("/"))
        evaluate(place, o.runs or sorted((place.work / "runs").glob("*-seed*")), part, parts)
    elif o.stage == "summary":
        from promise_stages import summary

        summary.summary(place, o.record or summary.RECORD)
    elif o.stage == "zoo":
        from promise_stages.zoo import build_zoo

        build_zoo(place, o.models, sets)
    else:
        from promise_stages import ensembles

        if o.stage == "cost":
            ensembles.cost(place, o.models, sets)
            return
        for data in sets:
            for model in o.models:
                if not ensembles.ensemble(place, model, data, o.seeds):
                    print(f"{data}, {model}: the predictions of some seeds are missing", flush=True)


def _train(o: argparse.Namespace, place: Place, sets: tuple[str, ...]) -> None:
    from promise_stages import training
    from promise_stages.settings import read_units
    from promise_stages.summary import print_search

    decays = training.searched_decays(read_units(place.work, "search")) if o.searched else {}
    print(f"weight decays: {decays or 'those of the preset'}", flush=True)
    options = training.Options(o.at_once, o.precision, tuple(o.overrides), o.epochs, decays)
    if o.stage == "train":
        training.train(place, options, o.models, sets, o.seeds)
    elif o.stage == "distill":
        for data in o.sets or ("cifar10",):
            training.distill(place, options, o.seeds, data)
    else:
        try:
            training.search(place, options, o.models, sets, o.decays, fit=not o.score_only)
        finally:
            print_search(list(read_units(place.work, "search")))


if __name__ == "__main__":
    main()
