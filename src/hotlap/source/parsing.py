"""From the bytes of a file to its tree. What cannot be read is one sentence with the line in it."""

from __future__ import annotations

import ast
import io
import tokenize
import warnings

from hotlap.errors import HotlapError

_PYTHON_2 = ("Missing parentheses in call to", "multiple exception types must be", "leading zeros in decimal")


def decoded(data: bytes, path: str) -> str:
    """The text of a Python file, by its BOM or encoding cookie, without the BOM."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return data.decode(encoding)
    except SyntaxError as error:
        raise HotlapError(f"{path}:1: {error.msg or 'unknown encoding'}; save the file as UTF-8.") from error
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise HotlapError(f"{path}:{line}: not valid {error.encoding}; save the file as UTF-8.") from error


def parsed(text: str, path: str) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an old escape in a string of the user's is no news here
            return ast.parse(text, path)
    except SyntaxError as error:
        if any(sign in (error.msg or "") for sign in _PYTHON_2):
            raise HotlapError(f"{path}:{error.lineno or 1}: Python 2, which is not read here; exclude it.") from error
        raise HotlapError(f"{path}:{error.lineno or 1}: not valid Python ({error.msg}).") from error
    except ValueError as error:  # null bytes
        raise HotlapError(f"{path}:1: not valid Python ({error}).") from error
    except (RecursionError, MemoryError) as error:
        raise HotlapError(f"{path}:1: nested too deeply to be parsed.") from error
