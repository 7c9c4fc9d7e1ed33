"""Trained models by name: fetched once from a configurable place, verified, cached, and used offline afterwards.

`index` is the list of the models of a place, `archive` the one file per model, and `places` says where both are. `huggingface`
reads and writes repositories of the Hugging Face Hub, with the `card` of the model. `names` finds the folder of a name.
"""

from ltnode.hub.cache import is_cached
from ltnode.hub.huggingface import push_to_hub
from ltnode.hub.names import copy_model, fetch_model, from_pretrained, list_models, locate, pack_models

__all__ = ["copy_model", "fetch_model", "from_pretrained", "is_cached", "list_models", "locate", "pack_models", "push_to_hub"]
