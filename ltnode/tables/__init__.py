"""Tables of users: files with columns of numbers, categories, booleans and dates become matrices of features.

Read in this order: ``read`` (files to columns), ``schema`` (the columns of a model, its targets, and the encoding of rows),
``kinds`` (the kind of a column), ``column`` and ``target`` (one column each), ``cells`` (single cells), ``schema_json``.
"""

from ltnode.tables.column import KINDS, Column, Kind
from ltnode.tables.read import TABLE_SUFFIXES, read_table
from ltnode.tables.schema import Encoded, Schema, Table, as_table
from ltnode.tables.target import TASKS, Target, Task

__all__ = [
    "KINDS",
    "TABLE_SUFFIXES",
    "TASKS",
    "Column",
    "Encoded",
    "Kind",
    "Schema",
    "Table",
    "Target",
    "Task",
    "as_table",
    "read_table",
]
