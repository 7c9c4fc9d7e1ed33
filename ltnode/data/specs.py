"""Table of the four image sets: properties, official files and checksums."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from ltnode.data.augment import Augmentation, Normalisation
from ltnode.errors import InputError, unknown_name

Reader = Literal["idx", "cifar-binary", "cifar-python", "cifar-archive", "svhn"]


@dataclass(frozen=True)
class Layout:
    """A possible set of files in a folder: for each required file, its possible names."""

    reader: Reader
    files: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Content:
    """Decompressed content of a split: number of examples, md5 of the uint8 pixels (N, H, W[, C]) and of the uint8 labels."""

    count: int
    x_md5: str
    y_md5: str


@dataclass(frozen=True)
class ImageSpec:
    """Specification of an image set.

    Attributes:
        name: Name of the set for `load`.
        title: Name in reports.
        shape: (C, H, W) of an image.
        class_names: Names in the order of the labels.
        normalise: Normalisation of the paper's experiments.
        augment: Training augmentation of the paper's experiments.
        ood: Name of the corresponding out-of-distribution set.
        layouts: Possible layouts of the official files, in order of preference.
        folders: Sub-folders of the data folder to search.
        urls: Base URLs for the download, in order of preference.
        downloads: Files to download, a subset of the names in ``file_md5``.
        file_md5: md5 of the official files as distributed.
        train: Decompressed content of the training split.
        test: Decompressed content of the test split.
        content_source: Provenance of content that equals ``train`` and ``test``.
        licence: Note on the terms of use.
    """

    name: str
    title: str
    shape: tuple[int, int, int]
    class_names: tuple[str, ...]
    normalise: Normalisation
    augment: Augmentation
    ood: str
    layouts: tuple[Layout, ...]
    folders: tuple[str, ...]
    urls: tuple[str, ...]
    downloads: tuple[str, ...]
    file_md5: Mapping[str, str]
    train: Content
    test: Content
    content_source: Literal["official", "reconstructed"]
    licence: str


_IDX_NAMES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)


def _idx_layout() -> Layout:
    files = []
    for official in _IDX_NAMES:
        plain = official.removesuffix(".gz")
        renamed = plain.replace("-idx", ".idx")  # some programs use this name when they unpack the file
        files.append((plain, official, renamed, f"{renamed}.gz"))
    return Layout("idx", tuple(files))


_BATCHES = (*(f"data_batch_{k}" for k in range(1, 6)), "test_batch")
_DIGITS = tuple("0123456789")

_MNIST = ImageSpec(
    name="mnist",
    title="MNIST",
    shape=(1, 28, 28),
    class_names=_DIGITS,
    normalise=Normalisation((0.1307,), (0.3081,)),
    augment=Augmentation(padding=2),
    ood="fashion-mnist",
    layouts=(_idx_layout(),),
    folders=("mnist", "MNIST/raw"),
    urls=("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/"),
    downloads=_IDX_NAMES,
    file_md5=MappingProxyType(
        {
            "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
            "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
            "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
        }
    ),
    train=Content(60000, "6510e85a72c3e9475c492d559d3770d2", "e86ee40d66677c011a9abda399ec8c4d"),
    test=Content(10000, "240610fa99e73bfa49df8e7fc24d3206", "073c3904dfbd3e141ff8aa01cfde6b15"),
    content_source="official",
    licence="LeCun, Cortes, Burges; Creative Commons Attribution-ShareAlike 3.0",
)

_FASHION_MNIST = ImageSpec(
    name="fashion-mnist",
    title="Fashion-MNIST",
    shape=(1, 28, 28),
    class_names=(
        "T-shirt/top",
        "trouser",
        "pullover",
        "dress",
        "coat",
        "sandal",
        "shirt",
        "sneaker",
        "bag",
        "ankle boot",
    ),
    normalise=Normalisation((0.2860,), (0.3530,)),
    augment=Augmentation(padding=2),
    ood="mnist",
    layouts=(_idx_layout(),),
    folders=("fashion-mnist", "FashionMNIST/raw"),
    urls=("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
    downloads=_IDX_NAMES,
    file_md5=MappingProxyType(
        {
            "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
            "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
            "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
        }
    ),
    train=Content(60000, "f209073e486d5113ebe2cc431d4df862", "3236f6424fc25388b2834cb19942cf7e"),
    test=Content(10000, "b7656a891b218fc13e45205c48a92cae", "8dea97a4e78c1bd1b5a6e8efbb870b6e"),
    content_source="official",
    licence="Zalando SE; MIT licence",
)

_CIFAR10 = ImageSpec(
    name="cifar10",
    title="CIFAR-10",
    shape=(3, 32, 32),
    class_names=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    normalise=Normalisation((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    augment=Augmentation(padding=4, flip=True),
    ood="svhn",
    layouts=(
        Layout("cifar-binary", tuple((f"{batch}.bin",) for batch in _BATCHES)),
        Layout("cifar-python", tuple((batch,) for batch in _BATCHES)),
        Layout("cifar-archive", (("cifar-10-binary.tar.gz", "cifar-10-python.tar.gz"),)),
    ),
    folders=(
        "cifar-10-batches-bin",
        "cifar-10-batches-py",
        "cifar10",
        "cifar10/cifar-10-batches-bin",
        "cifar10/cifar-10-batches-py",
    ),
    urls=("https://www.cs.toronto.edu/~kriz/",),
    downloads=("cifar-10-binary.tar.gz",),  # the binary version needs no unpickling
    file_md5=MappingProxyType(
        {
            "cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530",
            "cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a",
            "data_batch_1": "c99cafc152244af753f735de768cd75f",
            "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
            "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
            "data_batch_4": "634d18415352ddfa80567beed471001a",
            "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
            "test_batch": "40351d587109b95175f43aff81a1287e",
        }
    ),
    train=Content(50000, "17e2cb5a4119d89a4a13e02b91701bff", "69c5f3349be54915edfca558b72ad888"),
    test=Content(10000, "6d2714505047e13831cd876923568712", "251f18ce75337ae9ca5d0dbd7ea62cf4"),
    content_source="official",
    licence="Krizhevsky, 2009; no formal licence, cite the technical report",
)

# The content below is a reconstruction from the full-number images instead of the official files: the crops are the same, but
# an estimated 50 to 90 of the 99,289 differ in one or two values by one. Official files are recognised by their md5.
_SVHN = ImageSpec(
    name="svhn",
    title="SVHN",
    shape=(3, 32, 32),
    class_names=_DIGITS,
    normalise=Normalisation((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)),
    augment=Augmentation(padding=4),
    ood="cifar10",
    layouts=(Layout("svhn", (("train_32x32.mat",), ("test_32x32.mat",))),),
    folders=("svhn",),
    urls=("http://ufldl.stanford.edu/housenumbers/",),
    downloads=("train_32x32.mat", "test_32x32.mat"),
    file_md5=MappingProxyType(
        {
            "train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
            "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
        }
    ),
    train=Content(73257, "706d4aaa3b03d5ecef0643af27c764fa", "c5a0fdf820e3fec4d60e40d73a439774"),
    test=Content(26032, "918490e251b60e5c1e3a61bf9eefee8b", "96a15e7cc0886c4cadd305cbe3d154f0"),
    content_source="reconstructed",
    licence="Netzer et al., 2011; for non-commercial use only",
)

SPECS: Mapping[str, ImageSpec] = MappingProxyType({s.name: s for s in (_MNIST, _FASHION_MNIST, _CIFAR10, _SVHN)})


def image_spec(name: str) -> ImageSpec:
    """Specification of the image set ``name``; an unknown name raises an InputError that suggests the nearest one."""
    if name not in SPECS:
        raise InputError(unknown_name("image set", name, SPECS))
    return SPECS[name]


def image_specs() -> list[ImageSpec]:
    """Specifications of all image sets."""
    return list(SPECS.values())
