"""Published values from a TOML file, and look-ups of values that it does not contain."""

from __future__ import annotations

import pytest

from ltnode.errors import DataError
from ltnode.report.published import Published, read_values


def test_values_are_looked_up_by_keys(tmp_path):
    (tmp_path / "values.toml").write_text('source = "x"\n[entropy.a.b]\nnode = [0.5, 0.1]\n')
    published = Published(read_values(tmp_path / "values.toml"))
    assert published.value("entropy", "a", "b", "node") == [0.5, 0.1]
    assert published.value("entropy", "a") == {"b": {"node": [0.5, 0.1]}}
    assert published.value("entropy", "c", "b", "node") is None
    assert published.value("source", "a") is None
    assert Published().value("entropy") is None


def test_a_named_file_must_be_there_and_be_toml(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        read_values(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("= 3")
    with pytest.raises(DataError, match="cannot read"):
        read_values(tmp_path / "bad.toml")
