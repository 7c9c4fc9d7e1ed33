"""The index in the package: what is published with a release, byte for byte."""

from __future__ import annotations

from repository import ROOT, repository_file

from ltnode import hub
from ltnode.hub import places
from ltnode.hub.index import index_bytes, read_index


def test_the_index_in_the_package_is_that_of_the_zoo() -> None:
    """Archives are reproducible, so that the checksums of the release are known before it is made."""
    repository_file("zoo/README.md")
    current = index_bytes(hub.pack_models(ROOT / "zoo"))
    advice = "the zoo has changed: ltnode models pack zoo --out /tmp/models && cp /tmp/models/index.json ltnode/hub/models.json"
    assert current == places._BUILT_IN.read_bytes(), advice


def test_the_index_in_the_package_can_be_read() -> None:
    assert "lt-node-cifar10" in read_index(places._BUILT_IN.read_bytes(), "models.json")
