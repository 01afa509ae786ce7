"""Expected errors by their stable code, so that tests do not depend on the wording of messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from dragoman.errors import ERROR_CODES, DataError, DragomanError

CLASS_BY_CODE = {row.code: row.error for row in ERROR_CODES}


@contextmanager
def raises_code(code: str, *names: str) -> Iterator[pytest.ExceptionInfo[DragomanError]]:
    """Expect an error with this code, of a class that may carry it, with a message of one line.

    names: values that the message must name, such as a path, a key, a number or a command
    """
    with pytest.raises(DragomanError) as raised:
        yield raised
    error, message = raised.value, str(raised.value)
    assert error.code == code, f"{error.code}: {message}"
    assert isinstance(error, CLASS_BY_CODE[code])
    assert "\n" not in message
    assert [name for name in names if name not in message] == [], message


def error_message(action: Callable[[], object], error_type: type[DragomanError] = DataError) -> str:
    """Return the message of the error that `action` raises, which must be one printable line."""
    with pytest.raises(error_type) as raised:
        action()
    message = str(raised.value)
    assert message.isprintable(), message
    return message
