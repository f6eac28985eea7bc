"""XML as NCCL writes it, read with patience: elements with their lines, as far as the text goes.

A cut or broken file gives the elements in front of the break. Only what lies inside the wanted root is parsed, so
a DOCTYPE and its entities never reach the parser.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from xml.parsers import expat

from topo_tune.errors import InputError
from topo_tune.scan.facts.words import clipped, without_escapes

_ELEMENTS_LIMIT = 20_000
"""Far above what NCCL itself takes (some thousands for a whole NVLink domain)."""
_DEPTH_LIMIT = 64
"""PCI trees are at most about ten bridges deep."""
_ATTRIBUTES_LIMIT = 64
_VALUE_LIMIT = 5000
"""Characters: a mask of 16384 CPUs has 4607."""

_MPI_LABEL = re.compile(r"^\[\d{1,6},\d{1,6}\]<std(?:out|err)>: ?", re.M)
_LABEL = re.compile(r"(?:\S{1,80}:)?")
"""What stands before a line when a launcher says whose it is."""
_TAB_BEFORE_ELEMENT = re.compile(r"^ *\t[ \t]*<", re.M)
_ENDS = {"no element found", "unclosed token", "unclosed CDATA section", "partial character"}


class Element:
    """One element: attributes in their order, children, and the line on which it begins."""

    def __init__(self, name: str, attributes: dict[str, str], line: int) -> None:
        self.name, self.attributes, self.line = name, attributes, line
        self.children: list[Element] = []

    def get(self, name: str) -> str | None:
        """An attribute's value without outer blanks, or None."""
        value = self.attributes.get(name)
        return None if value is None else value.strip()

    def all(self, *names: str) -> list[Element]:
        """The children of these names."""
        return [child for child in self.children if child.name in names]

    def walk(self) -> Iterator[Element]:
        """This element and everything below it, in the order of the file."""
        waiting = [self]
        while waiting:
            element = waiting.pop()
            yield element
            waiting.extend(reversed(element.children))


class XmlText:
    """The wanted root of a text, and what kept it from being read to its end."""

    def __init__(self, root: Element, problems: list[str], refused_by_nccl: list[str]) -> None:
        self.root, self.problems, self.refused_by_nccl = root, problems, refused_by_nccl


def begins_with_root(text: str, root: str) -> bool:
    """Whether a text is XML with this root, on a line of its own but for comments, a declaration or a label."""
    text = _MPI_LABEL.sub("", text.lstrip("\ufeff"))
    start = _start(text, root)
    if start is None:
        return False
    before = text[text.rfind("\n", 0, start) + 1 : start].strip()
    return _LABEL.fullmatch(before) is not None or before.endswith(("?>", "-->"))


def read(text: str, root: str, *, file: str | None = None) -> XmlText:
    """The first element of this name, with everything in it that can be read.

    Raises InputError where there is none, or where not even its first tag is whole.
    """
    original = text
    text = _MPI_LABEL.sub("", without_escapes(text.replace("\0", "")))
    start = _start(text, root)
    if start is None:
        first = next((line for line in text.lstrip("\ufeff").split("\n", 200) if line.strip()), "nothing")
        raise InputError(
            f"no `<{root}>` element: found `{clipped(first)}`", file=file, hint="save the whole XML file"
        )
    reader = _Reader(text.count("\n", 0, start))
    reader.read(text[start:].encode("utf-8", "replace"), root)
    if reader.root is None:
        raise InputError(
            f"`<{root}` is not followed by anything that can be read: {reader.problems[0]}",
            file=file,
            line=reader.first_line,
            hint="save the whole XML file",
        )
    return XmlText(reader.root, reader.problems, _refused(original, text, start))


def whole(text: str | None, base: int = 10) -> int | None:
    """An integer as C's strtol reads it, trailing text ignored; base 10 takes `0x` for hexadecimal, too."""
    match = re.match(r"([+-]?)(?:0[xX]([0-9a-fA-F]{1,16})|([0-9a-fA-F]{1,16}))", (text or "").strip())
    if match is None:
        return None
    sign, marked, plain = match.groups()
    digits = marked or plain
    if marked is None and base == 10:
        digits = re.match(r"[0-9]*", plain).group()  # type: ignore[union-attr]
        if not digits:
            return None
    number = min(int(digits, 16 if marked is not None else base), (1 << 63) - 1)
    return -number if sign == "-" else number


def number(text: str | None) -> float | None:
    """A decimal number in front of its unit, or None."""
    match = re.match(r"[+-]?\d{1,12}(?:\.\d{1,12})?", (text or "").strip())
    return float(match.group()) if match else None


class _Stop(Exception):
    """Ends the parser: the root is closed, or the text holds more elements than any machine."""


class _Reader:
    """The state between expat's calls."""

    def __init__(self, lines_before: int) -> None:
        self.root: Element | None = None
        self.problems: list[str] = []
        self.first_line = lines_before + 1
        self._lines_before = lines_before
        self._open: list[Element] = []
        self._too_deep = 0
        self._count = 0
        self._parser = expat.ParserCreate("utf-8")
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end

    def read(self, data: bytes, root: str) -> None:
        try:
            self._parser.Parse(data, True)
        except _Stop:
            pass
        except expat.ExpatError as error:
            self.problems.append(self._broken(error, root))
        else:
            return
        again = data.find(f"<{root}".encode(), max(self._parser.CurrentByteIndex, 0) + 1)
        if not self._open and again >= 0:
            line = self._lines_before + data.count(b"\n", 0, again) + 1
            self.problems.append(f"line {line}: a second `<{root}>` begins here and is left out")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._count += 1
        if self._count > _ELEMENTS_LIMIT:
            self.problems.append(
                f"line {self._line}: more than {_ELEMENTS_LIMIT} elements, the rest is left out"
            )
            raise _Stop
        if self._too_deep or len(self._open) == _DEPTH_LIMIT:
            if not self._too_deep:
                self.problems.append(
                    f"line {self._line}: elements more than {_DEPTH_LIMIT} deep are left out"
                )
            self._too_deep += 1
            return
        kept = list(attributes.items())[:_ATTRIBUTES_LIMIT]
        element = Element(name, {key: value[:_VALUE_LIMIT] for key, value in kept}, self._line)
        if self._open:
            self._open[-1].children.append(element)
        else:
            self.root = element
        self._open.append(element)

    def _end(self, _name: str) -> None:
        if self._too_deep:
            self._too_deep -= 1
            return
        self._open.pop()
        if not self._open:
            raise _Stop

    @property
    def _line(self) -> int:
        return self._lines_before + self._parser.CurrentLineNumber

    def _broken(self, error: expat.ExpatError, root: str) -> str:
        line = self._lines_before + error.lineno
        words = expat.errors.messages.get(error.code, "not well-formed")
        if words in _ENDS:
            return f"line {line}: the file ends here, before `</{root}>`"
        return f"line {line}: the XML breaks here ({words}), the rest is left out"


def _start(text: str, root: str) -> int | None:
    """Where the root's first tag begins, comments in front of it skipped."""
    position = 0
    while True:
        tag = _tag(text, root, position)
        comment = text.find("<!--", position)
        if tag is None or not 0 <= comment < tag:
            return tag
        end = text.find("-->", comment + 4)
        if end < 0:
            return None
        position = end + 3


def _tag(text: str, root: str, position: int) -> int | None:
    while (position := text.find(f"<{root}", position)) >= 0:
        if text[position + 1 + len(root) : position + 2 + len(root)] in {" ", "\t", "\n", ">", "/"}:
            return position
        position += 1
    return None


def _refused(original: str, text: str, start: int) -> list[str]:
    """What stops NCCL's reader, which skips blanks and line ends and knows comments, but nothing else.

    NVIDIA/nccl: src/graph/xml.cc, xmlGetNode.
    """
    found = []
    if original.startswith("\ufeff"):
        found.append("line 1: it begins with a byte order mark")
    declaration = text.find("<?", 0, start)
    if declaration >= 0:
        found.append(f"line {text.count(chr(10), 0, declaration) + 1}: an XML declaration (`<?xml ...?>`)")
    doctype = text.find("<!DOCTYPE", 0, start)
    if doctype >= 0:
        found.append(f"line {text.count(chr(10), 0, doctype) + 1}: a DOCTYPE")
    tab = _TAB_BEFORE_ELEMENT.search(text)
    if tab:
        found.append(f"line {text.count(chr(10), 0, tab.start()) + 1}: a tab in front of an element")
    return found
