"""Settings in shell code, batch scripts, launcher lines and lists of container arguments."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from topo_tune.lint.message import Format, Message, message, quoted
from topo_tune.lint.names import is_known
from topo_tune.lint.setting import Listing, Setting
from topo_tune.lint.words import Word, split_words

MENTIONS_NCCL = re.compile(r"(?i)nc[cl]")
"""In every spelling and misspelling of NCCL's prefix; other lines need no closer look."""

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_EXPORTS = {"export", "ENV", "env"}
_DECLARES = {"declare", "typeset", "readonly", "local"}
_PAIRS = {"setenv", "-genv", "-env", "ENV"}
"""Words that are followed by a name and a value."""

_BEFORE_A_COMMAND = {
    "then",
    "do",
    "else",
    "elif",
    "if",
    "while",
    "until",
    "!",
    "{",
    "}",
    "time",
    "exec",
    "RUN",
}
_ALL_EXPORTED = re.compile(r"(?m)^[ \t]*set\s+(?:-\w*a\w*|-o\s+allexport)\b")
_EXPORTED_LATER = re.compile(r"(?m)^[^#\n]*?\b(?:export|declare[ \t]+-(?=\w*x)\w+)[ \t]+([^\n;&|]*)")
_LIST_MARK = re.compile(r"(?<=[\"']),(?=[ \t]*[\"'])|\[(?=[ \t]*[\"'])")
_ITEM_LINE = re.compile(
    r"(?m)^[ \t]*(?P<quote>[\"'])[^\"'\n]*(?P=quote)(?P<end>[ \t]*)(?P<comma>,?)[ \t]*\r?$"
)
_LONGEST_INNER = 20000
"""Characters of code in quotes that are read."""

_HERE_DOCUMENT = re.compile(r"<<-?[ \t]*[\"']?([A-Za-z_]\w{0,40})[\"']?[^\n]*\n")
_MOST_HERE_DOCUMENTS = 50
_SRUN_EXPORT = re.compile(r"--export=(.*)", re.DOTALL)
_NAME_ONLY = re.compile(r"[A-Z_][A-Z0-9_]*")


class Places:
    """Line and column of an offset; asked for offsets in rising order, it reads the text once."""

    def __init__(self, text: str) -> None:
        self._text, self._offset, self._line = text, 0, 1

    def of(self, offset: int) -> tuple[int, int]:
        """Both from 1."""
        if offset < self._offset:
            self._offset, self._line = 0, 1
        self._line += self._text.count("\n", self._offset, offset)
        self._offset = offset
        return self._line, offset - (self._text.rfind("\n", 0, offset) + 1) + 1


def read_shell(text: str) -> Listing:
    """Settings of a shell script: exported, in front of a command, or handed to a launcher."""
    exported = None if _ALL_EXPORTED.search(text) else _exported_names(text)
    settings: list[Setting] = []
    messages: list[Message] = []
    for command in _commands(text):
        found, said = _of_command(command, exported)
        settings += found
        messages += said
    bodies = list(_here_documents(text))
    settings = [
        replace(s, is_passed=s.is_passed or any(begin <= s.line < end for begin, end in bodies))
        for s in settings
    ]
    placed, moved = _placed(text, settings, messages)
    unseen = [s.about_name(*_NOT_EXPORTED) for s in placed if not s.is_passed and is_known(s.name)]
    return Listing(Format.SHELL, tuple(placed), (*_carriage_returns(text), *moved, *unseen))


def read_args(text: str) -> Listing:
    """Settings of an argument list: `"NCCL_X=1",`, `- NCCL_X=1`, `-x NCCL_X=1 \\`."""
    settings: list[Setting] = []
    messages: list[Message] = []
    # A comma or bracket between quotes parts words; every place in the text stays where it is.
    for words in _commands(_LIST_MARK.sub(" ", text)):
        bare = [_without_list_marks(word) for word in words]
        found, said = _of_command([word for word in bare if word.text], None)
        settings += found
        messages += said
    placed, moved = _placed(text, settings, messages)
    return Listing(Format.ARGS, tuple(placed), (*moved, *_missing_commas(text)))


_NOT_EXPORTED = (
    "not-exported",
    "a shell variable without `export`: programs started from this shell do not see it",
    "write `export` in front of it",
)


def _here_documents(text: str) -> Iterator[tuple[int, int]]:
    """Begin and end of `cat > /etc/nccl.conf <<EOF` bodies: what they set is a file's, not the shell's."""
    position = 0
    for _ in range(_MOST_HERE_DOCUMENTS):
        opened = _HERE_DOCUMENT.search(text, position)
        if opened is None:
            return
        position = opened.end()
        closed = re.compile(rf"(?m)^[ \t]*{opened.group(1)}[ \t]*\r?$").search(text, position)
        if closed is not None:
            yield position, closed.start()
            position = closed.end()


def _carriage_returns(text: str) -> Iterator[Message]:
    lines = text.count("\r\n")
    if lines:
        yield message(
            "carriage-return",
            f"{'a line ends' if lines == 1 else f'{lines} lines end'} in CR LF: a shell keeps the CR in the value",
            line=text.count("\n", 0, text.index("\r\n")) + 1,
            hint="convert the file, as with `sed -i 's/\\r$//'`",
        )


def _missing_commas(text: str) -> Iterator[Message]:
    """Lines with one quoted item and no comma, between others that have one."""
    items = list(_ITEM_LINE.finditer(text))
    if sum(bool(item.group("comma")) for item in items) <= len(items) // 2:
        return
    places = Places(text)
    for item in items[:-1]:
        if not item.group("comma"):
            line, _ = places.of(item.start("end"))
            yield message(
                "missing-comma",
                "no comma behind this item: JSON refuses the list, Python joins it with the next item",
                line=line,
                column=item.start("end") - item.start() + 1,
                hint="end the line with a comma",
            )


def _commands(text: str) -> Iterator[list[Word]]:
    """The words of each simple command on a line that mentions NCCL."""
    done = 0
    while match := MENTIONS_NCCL.search(text, done):
        start, end = _logical_line(text, match.start(), done)
        done = end
        words: list[Word] = []
        for word in split_words(text, start, end):
            if not word.is_operator:
                words.append(word)
                continue
            if words:
                yield words
            words = []
        if words:
            yield words


def _logical_line(text: str, position: int, begin: int) -> tuple[int, int]:
    """Begin and end of the line around a position, with the lines that a backslash joins to it."""
    start = text.rfind("\n", begin, position) + 1 or begin
    while start - 2 >= begin and text[start - 2] == "\\":
        start = text.rfind("\n", begin, start - 1) + 1 or begin
    end = position
    while True:
        end = text.find("\n", end)
        if end < 0:
            return start, len(text)
        if text[end - 1] != "\\" and text[end - 2 : end] != "\\\r":
            return start, end + 1
        end += 1


def _without_list_marks(word: Word) -> Word:
    """Without the brackets and commas of the list around it; a lone `-` of YAML becomes nothing."""
    stripped = word.text.strip("[],").strip("{}") if "{{" not in word.text else word.text.strip("[],")
    begin = word.text.find(stripped) if stripped else 0
    if stripped in ("-", "args:", "command:", "env:"):
        stripped = ""
    return Word(stripped, word.start + begin, word.is_plain)


def _of_command(words: Sequence[Word], exported: set[str] | None) -> tuple[list[Setting], list[Message]]:
    """Settings of one command; lines and columns are offsets still. `exported`: None where all are passed."""
    words = list(words)
    while words and words[0].text in _BEFORE_A_COMMAND:
        words = words[1:]
    if not words:
        return [], []
    first = words[0].text
    if first == "unset" or first.startswith("#"):
        return [], []
    if pair := _pair(words):
        return [pair], []
    alone = all(_ASSIGNMENT.fullmatch(word.text) for word in words)
    declares = first in _DECLARES and not any(w.text.startswith("-") and "x" in w.text for w in words[1:])
    is_passed = not (alone or declares)
    settings: list[Setting] = []
    messages: list[Message] = []
    for word in words:
        for part, splits in _parts(word):
            setting = _assignment(part)
            if setting is None:
                continue
            # What stands inside of a word is code, or options for a launcher.
            is_local = not is_passed and part is word
            if is_local and exported is not None and setting.name not in exported:
                setting = replace(setting, is_passed=False)
            settings.append(setting)
            if splits:
                messages.append(_splits(setting, splits))
    return settings, messages


def _pair(words: Sequence[Word]) -> Setting | None:
    """`setenv NCCL_X 1`, `-genv NCCL_X 1`, Docker's `ENV NCCL_X 1`."""
    for at, word in enumerate(words[:-2]):
        name, value = words[at + 1], words[at + 2]
        if word.text in _PAIRS and "=" not in name.text and MENTIONS_NCCL.search(name.text):
            return Setting(name.text, value.text, name.start, 0, value.start, value.is_plain)
    return None


def _parts(word: Word) -> Iterator[tuple[Word, str | None]]:
    """The word, or what is in it: `--export=ALL,A=1,B=2`, `--env=A=1`, `-xA=1`, and code in quotes.

    Beside each part what `srun --export` would cut off from its value.
    """
    export = _SRUN_EXPORT.match(word.text)
    if export is not None:
        yield from _of_srun(word, export)
    elif word.text[:1] == "-" and "=" in word.text:
        mention = MENTIONS_NCCL.search(word.text)
        at = mention.start() if mention else 0
        yield Word(word.text[at:], word.start + at, word.is_plain), None
    elif any(c in word.text for c in " \t;"):
        # Code in quotes, or options kept for later: `NCCL_ARGS="-x NCCL_X=1 -x NCCL_Y=2"`.
        assigned = _ASSIGNMENT.match(word.text)
        if assigned is not None:
            yield word, None
        begin = assigned.start(2) if assigned else 0
        for inner in split_words(word.text, begin, min(len(word.text), begin + _LONGEST_INNER)):
            yield Word(inner.text, word.start + inner.start, inner.is_plain and word.is_plain), None
    else:
        yield word, None


def _of_srun(word: Word, export: re.Match[str]) -> Iterator[tuple[Word, str | None]]:
    offset = export.start(1)
    fragments = export.group(1).split(",")
    for at, fragment in enumerate(fragments):
        following = fragments[at + 1] if at + 1 < len(fragments) else None
        lost = following is not None and "=" not in following and not _NAME_ONLY.fullmatch(following)
        yield Word(fragment, word.start + offset, word.is_plain), following if lost else None
        offset += len(fragment) + 1


def _splits(setting: Setting, lost: str) -> Message:
    return setting.about(
        "export-splits-comma",
        f"`srun --export` splits at every comma: the value ends before {quoted(lost)}",
        f"`export {setting.name[:60]}=...` in front, and `srun --export=ALL`",
    )


def _assignment(word: Word) -> Setting | None:
    match = _ASSIGNMENT.fullmatch(word.text)
    if match is None or not MENTIONS_NCCL.search(match.group(1)):
        return None
    # Offsets stand in for line and column until the words of the whole text are known.
    return Setting(match.group(1), match.group(2), word.start, 0, word.start + match.start(2), word.is_plain)


def _placed(
    text: str, settings: list[Setting], messages: list[Message]
) -> tuple[list[Setting], list[Message]]:
    """Lines and columns in place of offsets."""
    places = Places(text)
    placed = []
    moved = {}
    for setting in settings:
        line, column = places.of(setting.line)
        moved[setting.line] = line, column
        value_column = column + setting.value_column - setting.line
        placed.append(replace(setting, line=line, column=column, value_column=value_column))
    return placed, [replace(said, line=moved[said.line][0], column=moved[said.line][1]) for said in messages]


def _exported_names(text: str) -> set[str]:
    """Names that a later or earlier `export NAME` passes on."""
    return {
        word.partition("=")[0]
        for match in _EXPORTED_LATER.finditer(text)
        for word in match.group(1).split()
        if MENTIONS_NCCL.search(word)
    }
