# SPDX-License-Identifier: Apache-2.0
"""One exception for each code of proto/errors.inc: ``kwker.errors.EBUSY``, ``kwker.errors.EINVAL``, …

Each is a :class:`kwker.Error` with ``.code`` (the negative number) and ``.name``, and also the
built-in exception of the same meaning where Python has one (EINVAL: ValueError, ENOENT:
FileNotFoundError, EUNSUPPORTED: NotImplementedError, …).
"""

from kwker import _kwker

Error = _kwker.Error
globals().update(_kwker.errors)
__all__ = ["Error", *_kwker.errors]
