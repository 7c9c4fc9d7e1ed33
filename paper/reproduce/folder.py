"""The folder ``paper`` of a clone: where the reproduction finds its inputs and where it writes its pages."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ltnode.errors import ConfigError
from ltnode.report.published import read_values
from paper.reproduce.images.zoo import Records
from paper.reproduce.published import PaperValues


@dataclass(frozen=True)
class PaperFolder:
    """The files and folders of ``paper``.

    Attributes:
        path: The folder itself.
    """

    path: Path

    @property
    def grid(self) -> Path:
        """Folder of the TOML files that describe the image experiments."""
        return self.path / "grid"

    @property
    def results(self) -> Path:
        """Folder of the recorded results."""
        return self.path / "results"

    @property
    def remarks(self) -> Path:
        """TOML file with the hand-written explanations."""
        return self.path / "remarks.toml"

    @property
    def causes(self) -> Path:
        """TOML file with the hypotheses on why numbers differ."""
        return self.path / "causes.toml"

    @property
    def repository(self) -> Path:
        """Folder of the repository, whose README and documentation hold generated tables of results."""
        return self.path.parent

    @property
    def promises(self) -> Path:
        """Record of what the default recipe was measured to do."""
        return self.repository / "benchmarks" / "results" / "promises.json"

    @property
    def zoo(self) -> Path:
        """Folder of the trained models."""
        return self.repository / "zoo"

    @property
    def records(self) -> Records:
        """Where the measurements of the zoo are recorded."""
        return Records(self.results, self.promises.with_name("zoo.json"))

    def figure_names(self) -> list[str]:
        """Paths of all drawings, relative to the folder: first those of the image experiments, then those of the 1-D ones."""
        drawn = [path for folder in ("figures", "results") for path in sorted((self.path / folder).glob("*.svg"))]
        return [path.relative_to(self.path).as_posix() for path in drawn]

    def published(self) -> PaperValues:
        """Read the values that the paper prints.

        Raises:
            ConfigError: There is no such file: this is not the folder of a clone.
        """
        file = self.path / "published.toml"
        if not file.exists():
            raise ConfigError(f"{self.path} holds no published.toml: the reproduction runs from a clone of the repository")
        return PaperValues(read_values(file))


CLONE = PaperFolder(Path(__file__).parents[1])
"""The folder ``paper`` that this code is in."""
