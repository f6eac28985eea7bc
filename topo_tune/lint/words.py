"""Words of a shell command line, without running a shell: quotes, comments, continuations, arithmetic.

Quotes end with their line: the body of `bash -c '...'` over several lines is code as well, and a lone apostrophe in
a text must not hide the rest of it.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator

import msgspec

_OPERATORS = re.compile(r"(?:[;&|()]|[0-9]*[<>]+)+")
_PIECE = re.compile(
    r"""(?P<continued>\\\r?\n)
    |'(?P<single>[^'\n]*)'
    |"(?P<double>(?:[^"\\\n]|\\.|\\\n)*)"
    |(?P<arithmetic>\$\(\([^\n$`'"]{0,200}?\)\))
    |(?P<variable>\$\{[^}\n]{0,200}\}|\$\([^()\n]{0,200}\)|\$\w+|\$|`[^`\n]*`?)
    |\\(?P<escaped>.)
    |(?P<plain>[^\s'"\\$`;&|()<>]+)
    |(?P<quote>['"\\])""",
    re.VERBOSE,
)
_IN_DOUBLE = re.compile(
    r"\\(?P<escaped>[$`\"\\\n])|(?P<arithmetic>\$\(\([^\n$`'\"]{0,200}?\)\))|(?P<variable>[$`])"
)
_BLANK = re.compile(r"[ \t\r\f\v]+")
_LARGEST_POWER = 64
_LONGEST_ARITHMETIC = 200
_ONLY_NUMBERS = re.compile(r"[0-9+\-*/%()<> \t]+")


class Word(msgspec.Struct, frozen=True):
    """One word of a command, as the command gets it."""

    text: str
    start: int
    """offset of its first character in the text, behind a quote"""
    is_plain: bool
    """False when a variable or a command is in it: then `text` holds them unexpanded"""
    is_operator: bool = False


def split_words(text: str, start: int, end: int) -> Iterator[Word]:
    """The words and operators of one logical line; a line end that is not continued ends a command."""
    position = start
    while position < end:
        if blank := _BLANK.match(text, position, end):
            position = blank.end()
        elif text[position] == "\n":
            yield Word("\n", position, True, is_operator=True)
            position += 1
        elif text[position] == "#":
            position = _line_end(text, position, end)
        elif found := _OPERATORS.match(text, position, end):
            yield Word(found.group(), position, True, is_operator=True)
            position = found.end()
        else:
            word, position = _word(text, position, end)
            if word is not None:
                yield word


def _word(text: str, start: int, end: int) -> tuple[Word | None, int]:
    parts: list[str] = []
    is_plain, position, first = True, start, None
    while position < end and (piece := _PIECE.match(text, position, end)):
        if piece.lastgroup != "continued":
            part, plain = _expanded(piece)
            parts.append(part)
            is_plain = is_plain and plain
            if first is None:
                first = position + (piece.lastgroup in ("single", "double"))
        position = piece.end()
    if first is None:
        return None, max(position, start + 1)
    return Word("".join(parts), first, is_plain), position


def _expanded(piece: re.Match[str]) -> tuple[str, bool]:
    kind, content = piece.lastgroup, piece.group(piece.lastgroup or 0)
    if kind == "double":
        return _unquoted(content)
    if kind == "arithmetic":
        return _computed(content)
    return content, kind != "variable"


def _unquoted(content: str) -> tuple[str, bool]:
    """The inside of double quotes; arithmetic is done, a variable makes it unknown."""
    is_plain = True

    def replaced(match: re.Match[str]) -> str:
        nonlocal is_plain
        if match.lastgroup == "escaped":
            return "" if match.group("escaped") == "\n" else match.group("escaped")
        if match.lastgroup == "variable":
            is_plain = False
            return match.group()
        value, known = _computed(match.group())
        is_plain = is_plain and known
        return value

    return _IN_DOUBLE.sub(replaced, content), is_plain


def _computed(arithmetic: str) -> tuple[str, bool]:
    """`$((2 * 1024))` as its number; as it stands where it holds more than numbers."""
    body = arithmetic[3:-2].strip()
    if len(body) > _LONGEST_ARITHMETIC or not _ONLY_NUMBERS.fullmatch(body):
        return arithmetic, False
    try:
        return str(_value(ast.parse(body, mode="eval").body)), True
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError):
        return arithmetic, False


_ARITHMETIC: dict[type[ast.AST], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
}


def _value(node: ast.AST) -> int:
    """A shell's integer arithmetic over constants. Raises ValueError for anything else."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        left, right = _value(node.left), _value(node.right)
        grows = isinstance(node.op, (ast.Pow, ast.LShift))
        if grows and not (0 <= right < _LARGEST_POWER and abs(left) < 1 << _LARGEST_POWER):
            raise ValueError("beyond 64 bits")
        return _ARITHMETIC[type(node.op)](left, right)
    raise ValueError("not arithmetic over numbers")


def _line_end(text: str, position: int, end: int) -> int:
    found = text.find("\n", position, end)
    return end if found < 0 else found
