"""Typical mistakes with own tables: each gets one line that names what is wrong, before any training begins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sales_table import sales, write_sales
from typer.testing import CliRunner

from ltnode.cli.app import make_app

pytestmark = pytest.mark.no_typecheck
QUICK = ("--set", "epochs=2", "--set", "batch_size=none", "--set", "model_options.width=4")


@dataclass(frozen=True)
class Mistake:
    """What somebody does wrong with the file ``t.csv``, the options beside ``--data t.csv``, and words of the answer."""

    prepare: Callable[[Path], object]
    options: str
    answer: tuple[str, ...]
    data: str = "t.csv"


def text(content: str | bytes, name: str = "t.csv") -> Callable[[Path], object]:
    """Write a file with this content."""
    encoded = content.encode() if isinstance(content, str) else content
    return lambda folder: (folder / name).write_bytes(encoded)


def table(**changes: object) -> Callable[[Path], object]:
    """Write the table of sales with some columns replaced."""
    return lambda folder: write_sales(folder / "t.csv", changes)


def with_cell(column: str, row: int, cell: object) -> Callable[[Path], object]:
    """Write the table of sales with one cell replaced."""
    values = sales()[column].astype(object)
    values[row - 1] = cell
    return table(**{column: values})


def several(*steps: Callable[[Path], object]) -> Callable[[Path], object]:
    """Do several things."""
    return lambda folder: [step(folder) for step in steps]


N = len(sales())
PRICE = "--target price"
MISTAKES = {
    "misspelt file": Mistake(table(), PRICE, ("tt.csv does not exist", "the folder has t.csv"), "tt.csv"),
    "no target": Mistake(table(), "", ("--target is missing", "--target COLUMN")),
    "misspelt target": Mistake(table(), "--target prise", ("no column 'prise'", "Did you mean 'price'?")),
    "target in capitals": Mistake(table(), "--target PRICE", ("no column 'PRICE'", "Did you mean 'price'?")),
    "empty file": Mistake(text(""), PRICE, ("the file is empty", "name the columns")),
    "only a header": Mistake(text("size,price\n"), PRICE, ("no rows",)),
    "no header": Mistake(text("1.5,2\n3.5,4\n"), PRICE, ("the first line must name the columns", "it holds numbers")),
    "unknown delimiter": Mistake(text("size:price\n1:2\n"), PRICE, ("one column", "separated by commas")),
    "repeated name": Mistake(text("a,a,price\n1,2,3\n"), PRICE, ("must differ", "'a' appears more than once")),
    "Excel file": Mistake(text(b"PK\x03\x04", "t.xlsx"), PRICE, ("not a table that can be read", "save it as CSV"), "t.xlsx"),
    "renamed binary file": Mistake(text(b"PK\x00\x00\x00,price\n"), PRICE, ("not UTF-8 text", "export the table as CSV")),
    "Latin-1": Mistake(text("Größe,price\n1,2\n".encode("latin-1")), PRICE, ("not UTF-8", "Latin-1")),
    "a line with too many cells": Mistake(text("a,price\n1,2\n1,2,3\n"), PRICE, ("t.csv", "check its delimiter and its lines")),
    "damaged Parquet": Mistake(text(b"PAR1", "t.parquet"), PRICE, ("not a Parquet file",), "t.parquet"),
    "arrays of different lengths": Mistake(
        lambda folder: np.savez(folder / "t.npz", x=np.ones((40, 2)), price=np.ones(39)),
        PRICE,
        ("the same number of rows", "39, 40"),
        "t.npz",
    ),
    "unknown data set": Mistake(table(), "--model lt-node", ("unknown data set 'sales'",), "sales"),
    "target of a built-in set": Mistake(table(), f"--model lt-node {PRICE}", ("--target belongs to tables",), "synthetic"),
    "constant target": Mistake(table(price=7), PRICE, ("the target 'price' is 7 in all rows", "nothing to predict")),
    "target without values": Mistake(table(price=[None] * N), PRICE, ("target price is missing in all 200 rows",)),
    "a word in the target": Mistake(with_cell("price", 9, "sold"), PRICE, ("'price'", "row 9 has 'sold'")),
    "target of dates": Mistake(table(), "--target sold", ("'sold' holds dates", "number of days")),
    "target of names": Mistake(table(), "--target comment", ("'comment' has 200 classes in 200 rows", "--task regression")),
    "a class with one row": Mistake(
        with_cell("dear", 5, "priceless"), "--target dear", ("'priceless'", "at least 2 are required")
    ),
    "words as numbers": Mistake(table(), "--target dear --task regression", ("'dear' must hold numbers", "row 1 has")),
    "misspelt task": Mistake(table(), f"{PRICE} --task regresion", ("unknown task 'regresion'", "regression")),
    "too few rows": Mistake(lambda folder: write_sales(folder / "t.csv", n=20), PRICE, ("at least 30 rows", "not 20")),
    "misspelt group": Mistake(table(), f"{PRICE} --group agnt", ("no column 'agnt'", "Did you mean 'agent'?")),
    "the target as group": Mistake(table(), f"{PRICE} --group price", ("cannot be the target and the group",)),
    "too few groups": Mistake(table(), f"{PRICE} --group new", ("at least 4 groups", "not 2")),
    "misspelt column to ignore": Mistake(table(), f"{PRICE} --ignore Comments", ("no column 'Comments'", "'comment'?")),
    "the target ignored": Mistake(table(), f"{PRICE} --ignore price", ("'price' cannot be the target and be ignored",)),
    "unknown kind": Mistake(table(), f"{PRICE} --kind city=words", ("'city'", "unknown kind 'words'", "category")),
    "kind without a column": Mistake(table(), f"{PRICE} --kind category", ("COLUMN=KIND", "zip=category")),
    "a kind that does not fit": Mistake(table(), f"{PRICE} --kind city=number", ("'city' must hold numbers", "row")),
    "a word in a column of numbers": Mistake(with_cell("size", 3, "large"), PRICE, ("'size'", "row 3 has 'large'", "--ignore")),
    "an infinite cell": Mistake(with_cell("size", 3, "inf"), PRICE, ("'size' must hold finite numbers", "row 3")),
    "only identifiers": Mistake(
        table(size=None, city=None, new=None, sold=None, agent=None, dear=None), PRICE, ("no column is left", "id: identifier")
    ),
    "a share above 1": Mistake(table(), f"{PRICE} --test-fraction 20", ("between 0 and 1", "not 20")),
    "two test parts": Mistake(table(), f"{PRICE} --test t.csv --test-fraction 0.3", ("cannot be combined",)),
    "test rows without the target": Mistake(
        several(table(), lambda folder: write_sales(folder / "test.csv", {"price": None})),
        f"{PRICE} --test test.csv",
        ("no column 'price'",),
    ),
    "test rows without a column": Mistake(
        several(table(), lambda folder: write_sales(folder / "test.csv", {"city": None})),
        f"{PRICE} --test test.csv",
        ("'city' is missing",),
    ),
    "an impossible setting": Mistake(table(), f"{PRICE} --set validation_fraction=1.5", ("validation_fraction", "1.5")),
}


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_answered_by_one_line_before_training(
    mistake: Mistake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exit status is 2, the last line is the error with what is wrong and what to do, and no run folder is left."""
    monkeypatch.chdir(tmp_path)
    mistake.prepare(tmp_path)
    command = ["train", "--data", mistake.data, *mistake.options.split(), "--out", "run", *QUICK]
    result = CliRunner().invoke(make_app(), command)
    assert result.exit_code == 2, result.output
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, result.output
    for words in mistake.answer:
        assert words in errors[0]
    assert "Traceback" not in result.output
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a table, and a run on it that predicts a class."""
    folder = tmp_path_factory.mktemp("mistakes")
    data = write_sales(folder / "t.csv", {"price": None})
    result = CliRunner().invoke(
        make_app(), ["train", "--data", str(data), "--target", "dear", "--out", str(folder / "run"), *QUICK]
    )
    assert result.exit_code == 0, result.output
    return folder / "run"


def rows(**changes: object) -> pd.DataFrame:
    """Some new rows of the table, with some columns replaced."""
    return sales(8, seed=5).assign(**changes)


USES = {
    "a missing column": ("predict", rows().drop(columns="city"), ("'city' is missing",)),
    "a renamed column": ("predict", rows().rename(columns={"size": "sizes"}), ("'size' (is it 'sizes'?)",)),
    "a word in a column of numbers": ("predict", rows(size="large"), ("'size' must hold numbers", "row 1 has 'large'")),
    "a date in another format": ("predict", rows(sold="31.12.2023"), ("'sold' must hold dates (ISO 8601)", "31.12.2023")),
    "an image": ("predict", "x.png", ("not a table that can be read",)),
    "a file that does not exist": ("predict", "none.csv", ("does not exist",)),
    "results without the target": ("evaluate", rows().drop(columns="dear"), ("no column 'dear'",)),
    "results with another class": ("evaluate", rows(dear="free"), ("unknown class 'free'", "cheap")),
    "another set": ("evaluate", "mnist", ("mnist",)),
}


@pytest.mark.parametrize(("command", "given", "answer"), USES.values(), ids=USES.keys())
def test_a_mistake_with_a_trained_model_is_answered_by_one_line(
    run: Path, tmp_path: Path, command: str, given: pd.DataFrame | str, answer: tuple[str, ...]
) -> None:
    """The columns of new rows are checked against the schema of the run."""
    file = tmp_path / "new.csv"
    if isinstance(given, str):
        file = tmp_path / given if "." in given else Path(given)
        if file.suffix == ".png":
            file.write_bytes(b"\x89PNG")
    else:
        given.to_csv(file, index=False)
    data = [str(file)] if command == "predict" else ["--data", str(file), "--out", str(tmp_path / "e.json")]
    result = CliRunner().invoke(make_app(), [command, str(run), *data])
    assert result.exit_code == 2, result.output
    errors = " ".join(line for line in result.stderr.splitlines() if line.startswith("error: "))
    for words in answer:
        assert words in errors, result.output
    assert "Traceback" not in result.output


def test_a_changed_or_removed_table_is_noticed(run: Path, tmp_path: Path) -> None:
    """Results on a table that is not the one of the training, without saying so, would be wrong."""
    data = run.parent / "t.csv"
    content = data.read_bytes()
    try:
        data.write_bytes(content + content.splitlines()[-1] + b"\n")
        changed = CliRunner().invoke(make_app(), ["evaluate", str(run)])
        data.unlink()
        removed = CliRunner().invoke(make_app(), ["evaluate", str(run)])
    finally:
        data.write_bytes(content)
    assert changed.exit_code == removed.exit_code == 2
    assert "has changed since the model was trained on it" in changed.stderr
    assert "which is not here" in removed.stderr


def test_what_is_only_unusual_is_predicted_and_noted(run: Path, tmp_path: Path) -> None:
    """An unseen category, an extra column and a cell that is missing for the first time do not stop the other rows."""
    city, new = ["Lugano"] + ["Bern"] * 7, ["yes", None] + ["no"] * 6
    rows(city=city, new=new, colour="red").to_csv(tmp_path / "new.csv", index=False)
    result = CliRunner().invoke(make_app(), ["predict", str(run), str(tmp_path / "new.csv")])
    assert result.exit_code == 0, result.output
    assert "city = 'Lugano' was not in training" in result.output
    assert "new is missing, as in no training row" in result.output
    assert "columns that the model does not know are not used: price, colour" in result.output
