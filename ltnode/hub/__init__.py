"""Trained models by name: fetched once from a configurable place, verified, cached, and used offline afterwards.

`index` is the list of the models of a place, `archive` the one file per model, `places` says where both are, and `names` finds
the run folder that belongs to a name.
"""

from ltnode.hub.names import copy_model, fetch_model, from_pretrained, is_cached, list_models, locate, pack_models

__all__ = ["copy_model", "fetch_model", "from_pretrained", "is_cached", "list_models", "locate", "pack_models"]
