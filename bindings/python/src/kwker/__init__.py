# SPDX-License-Identifier: Apache-2.0
"""Hugging Face language models as native decode steps on CPUs.

Importing this package opens nothing and needs neither torch nor numpy; ``kwker.decode`` needs both.
"""

from kwker import errors
from kwker._kwker import Error
from kwker._kwker import version as __version__
from kwker.client import Client

__all__ = ["Client", "Error", "__version__", "errors"]
