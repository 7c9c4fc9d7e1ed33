"""What a folder of images contains: its parts, its classes and their files, and everything that is wrong with them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ltnode.errors import DataError

PART_NAMES: Mapping[str, str] = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}
"""Names of folders that are parts of a set, and the part that each of them is."""
_NO_CONTENT = ("thumbs.db", "desktop.ini")
"""Files that operating systems leave behind."""
_NAMED = 3
"""Number of files that a problem names."""


@dataclass(frozen=True)
class FolderPart:
    """Image files of one part, in alphabetical order, and their labels."""

    files: tuple[Path, ...]
    labels: tuple[int, ...]


@dataclass(frozen=True)
class FolderLayout:
    """What was found in a folder.

    Attributes:
        class_names: The classes, in alphabetical order.
        parts: The parts by name: "train", and those of "val" and "test" that there are.
        problems: What is wrong with the folder, one line each.
    """

    class_names: tuple[str, ...]
    parts: Mapping[str, FolderPart]
    problems: tuple[str, ...] = ()

    @property
    def files(self) -> list[Path]:
        """The files of all parts."""
        return [file for part in self.parts.values() for file in part.files]


def read_layout(path: Path, fewest_classes: int = 2) -> FolderLayout:
    """Find parts, classes and files, without opening a file.

    Args:
        path: ``path/CLASS/*``, or ``path/PART/CLASS/*`` with ``train`` and any of ``val`` (or ``valid``, ``validation``) and
            ``test``. Hidden files are skipped.
        fewest_classes: Smallest number of classes that is no problem.

    Raises:
        DataError: There is no such folder, or its parts cannot be told.
    """
    if not path.is_dir():
        raise DataError(f"{path} is not a folder; pass a folder that contains one folder of images per class")
    problems: list[str] = []
    folders = _part_folders(path, problems)
    classes = {part: _class_folders(folder, problems) for part, folder in folders.items()}
    names = tuple(classes["train"])
    for part, found in classes.items():
        if tuple(found) != names and found and names:
            problems.append(
                f"{path}: the classes of train ({_some(names)}) and {folders[part].name} ({_some(tuple(found))}) differ; "
                "every part needs the same class folders"
            )
    if 0 < len(names) < fewest_classes:
        problems.append(
            f"{path} contains a single class, {names[0]!r}; a classification needs at least two, one folder of images for each"
        )
    parts = {}
    for part, found in classes.items():
        labelled = [(file, label) for label, files in enumerate(found.values()) for file in files]
        parts[part] = FolderPart(tuple(file for file, _ in labelled), tuple(label for _, label in labelled))
    return FolderLayout(names, parts, tuple(problems))


def raise_problems(problems: Sequence[str]) -> None:
    """Raise a `DataError` with one line per problem, if there are any."""
    if problems:
        raise DataError("\n".join(problems))


def named(files: Iterable[str]) -> str:
    """Name the first of some files, and say how many more there are."""
    listed = list(files)
    rest = len(listed) - _NAMED
    return ", ".join(listed[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")


def _part_folders(path: Path, problems: list[str]) -> dict[str, Path]:
    """The folders of the parts; the whole folder is the training part if it is not divided."""
    folders = [entry for entry in _visible(path) if entry.is_dir()]
    parts = [entry for entry in folders if entry.name.lower() in PART_NAMES and _holds_folders_only(entry)]
    if not parts:
        return {"train": path}
    found: dict[str, Path] = {}
    for entry in parts:
        part = PART_NAMES[entry.name.lower()]
        if part in found:
            problems.append(
                f"{path} contains both {found[part].name}/ and {entry.name}/; put the images of the part {part} into one"
            )
        found.setdefault(part, entry)
    others = [entry.name for entry in folders if entry not in parts]
    if others:
        problems.append(
            f"{path} contains {named(f'{name}/' for name in others)} beside {found_names(found)}; move these folders elsewhere, "
            "or use only train/, val/ and test/ on this level"
        )
    if "train" not in found:
        problems.append(f"{path} contains {found_names(found)} but no train/; put the images to learn from into train/CLASS/")
    raise_problems(problems)  # without the parts there are no classes to look for
    return {part: found[part] for part in ("train", "val", "test") if part in found}


def found_names(parts: Mapping[str, Path]) -> str:
    """The names of the folders of parts, for messages."""
    return ", ".join(f"{folder.name}/" for folder in parts.values())


def _class_folders(path: Path, problems: list[str]) -> dict[str, list[Path]]:
    """The files of every class."""
    classes = [entry for entry in _visible(path) if entry.is_dir()]
    if not classes:
        problems.append(f"{path} contains no folders; put the images of each class into a folder named after the class")
    found: dict[str, list[Path]] = {}
    empty, nested = [], []
    for folder in classes:
        entries = list(_visible(folder))
        found[folder.name] = [entry for entry in entries if entry.is_file()]
        inner = [entry for entry in entries if entry.is_dir()]
        if inner:
            nested.append(f"{folder.name}/{inner[0].name}/")
        elif not found[folder.name]:
            empty.append(f"{folder.name}/")
    if nested:
        problems.append(
            f"{path} has another level of folders inside its classes ({named(nested)}); the images of a class must lie directly "
            "in its folder: PATH/CLASS/image, or PATH/train/CLASS/image with val/ and test/ beside train/"
        )
    if empty:
        problems.append(f"{path}: {named(empty)} contains no images; add some, or remove the folder")
    return found


def _holds_folders_only(folder: Path) -> bool:
    """Whether a folder is a part of a set: a class may be called "train" or "valid", too, but holds images."""
    entries = list(_visible(folder))
    return not entries or any(entry.is_dir() for entry in entries)


def _visible(folder: Path) -> list[Path]:
    return sorted(e for e in folder.iterdir() if not e.name.startswith(".") and e.name.lower() not in _NO_CONTENT)


def _some(names: tuple[str, ...], most: int = 6) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
