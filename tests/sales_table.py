"""A generated table of sales with numbers, categories, booleans, dates, missing cells, an identifier and free text."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

CITIES = {"Bern": 1.0, "Basel": 1.2, "Genf": 1.5}


def sales(n: int = 200, seed: int = 0) -> pd.DataFrame:
    """Rows whose price depends on size, city, age and season."""
    rng = np.random.default_rng(seed)
    size, new = rng.gamma(4.0, 25.0, n).round(1), rng.random(n) < 0.4
    city = rng.choice(list(CITIES), n, p=[0.5, 0.3, 0.2])
    sold = [date(2022, 1, 1) + timedelta(days=int(day)) for day in rng.integers(0, 800, n)]
    season = np.sin([2 * np.pi * day.timetuple().tm_yday / 365 for day in sold])
    price = 3000 * size * np.array([CITIES[name] for name in city]) * (1 + 0.1 * new) + 20_000 * (season + rng.normal(size=n))
    frame = pd.DataFrame(
        {
            "id": np.arange(1, n + 1),
            "size": size,
            "city": city,
            "new": np.where(new, "yes", "no"),
            "sold": [day.isoformat() for day in sold],
            "agent": [f"agent {number}" for number in rng.integers(0, n // 8, n)],
            "comment": [f"sale {text:.9f}" for text in rng.random(n)],
            "price": price.round(),
            "dear": np.where(price > np.median(price), "dear", "cheap"),
        }
    )
    frame.loc[rng.random(n) < 0.06, "size"] = np.nan
    frame.loc[rng.random(n) < 0.04, "city"] = None
    return frame


def write_sales(path: Path, changes: Mapping[str, Any] | None = None, n: int = 200, seed: int = 0) -> Path:
    """Write the table as CSV, with some columns replaced; None removes a column."""
    frame = sales(n, seed)
    for name, values in (changes or {}).items():
        frame = frame.drop(columns=name) if values is None else frame.assign(**{name: values})
    frame.to_csv(path, index=False)
    return path
