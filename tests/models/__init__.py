"""Tests of the models; a package, so that `models.contract_suite` can be inherited from anywhere in the tests."""

import pytest

pytest.register_assert_rewrite("models.contract_suite")
