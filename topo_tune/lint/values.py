"""Values, one at a time: what NCCL's reading makes of quotes, comments, numbers and words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from topo_tune.errors import nearest
from topo_tune.lint.grammar import GRAMMARS
from topo_tune.lint.message import Format, Message, quoted
from topo_tune.lint.number import Number, read_number
from topo_tune.lint.ranges import out_of_range
from topo_tune.lint.setting import LONGEST_PART, Listing, Setting, Target
from topo_tune.records.catalogue import Variable, catalogue
from topo_tune.records.finding import Severity

_EXPANDS_PERCENT = {"NCCL_DEBUG_FILE", "NCCL_DEBUG_TIMESTAMP_FORMAT"}
_MAY_BE_EMPTY = {"NCCL_DEBUG_TIMESTAMP_FORMAT", "NCCL_DEBUG_TIMESTAMP_LEVELS"}
"""NVIDIA's guide gives the empty value a meaning."""

_MAY_HOLD_SPACES = {"NCCL_DEBUG_TIMESTAMP_FORMAT"}
_MORE_NUMBERS = {"NCCL_NTHREADS", "NCCL_LL128_NTHREADS"}
"""Read as numbers, though the catalogue describes their values in words."""

_UNSIGNED = {"NCCL_SOCKET_MAGIC", "NCCL_MNNVL_UUID"}
"""64 bits of which the first is no sign."""

_LEVELS = {"NCCL_NET_GDR_LEVEL", "NCCL_P2P_LEVEL"}
_LEVELS_OF_DIGITS = ("LOC", "PIX", "PXB", "PHB", "SYS")
_ANY_CASE = {"NCCL_DEBUG"}
_YES, _NO = {"true", "yes", "on", "enable", "enabled"}, {"false", "no", "off", "disable", "disabled", "none"}
_SUFFIXES = {
    "k": 1 << 10,
    "kb": 1 << 10,
    "kib": 1 << 10,
    "m": 1 << 20,
    "mb": 1 << 20,
    "mib": 1 << 20,
    "g": 1 << 30,
    "gb": 1 << 30,
    "gib": 1 << 30,
}
_VARIABLE = re.compile(r"\$[A-Za-z_]\w*|\$\{|\$\(|`[^`]*`")
_TEMPLATE = re.compile(r"\{\{|\{%|<%|@@?[A-Za-z_]\w*@@?|__[A-Z][A-Z_]+__")
_PLACEHOLDER = re.compile(r"<[A-Za-z][\w .:/-]*>")
_INLINE_COMMENT = re.compile(r"[ \t]#")


def values(listing: Listing, target: Target) -> Iterator[Message]:
    """Everything about each value by itself."""
    for setting in listing.settings:
        if setting.name.startswith("NCCL_"):
            yield from value_of(setting, listing.format, target)


def value_of(setting: Setting, format: Format, target: Target) -> Iterator[Message]:
    """One value: first what is around it, then what it says."""
    variable = catalogue().get(setting.name)
    if not setting.value:
        if setting.is_plain:
            yield from _empty(setting, format)
        return
    unexpanded = _unexpanded(setting, format)
    if unexpanded is not None:
        yield unexpanded
        return
    if not setting.is_plain:
        return
    bare, said = _unwrapped(setting, format, variable)
    yield from said
    # A value longer than NCCL's buffer is told of where it is read; what is left of it is checked.
    bare = bare[:LONGEST_PART]
    if not bare or variable is None:
        return
    if _reads_number(variable):
        yield from _number(setting, bare, variable, target)
    elif isinstance(variable.allowed, tuple):
        yield from _word(setting, bare, variable)
    if grammar := GRAMMARS.get(setting.name):
        yield from grammar(setting, bare, target)
    if variable.type == "path":
        yield from _path(setting, bare, format)
    if "%" in bare and setting.name not in _EXPANDS_PERCENT and re.search(r"%[hp]", bare):
        text = f"NCCL expands `%h` and `%p` in `NCCL_DEBUG_FILE` only: {quoted(bare)} stands as it is"
        yield setting.about("percent-not-expanded", text)


def _reads_number(variable: Variable) -> bool:
    return variable.is_integer or variable.name in _MORE_NUMBERS


def _empty(setting: Setting, format: Format) -> Iterator[Message]:
    if setting.name in _MAY_BE_EMPTY:
        return
    if setting.name == "NCCL_NET":
        text = "an empty network name matches no network: communicators fail to start"
        yield setting.about("empty-value", text, "remove the setting", severity=Severity.ERROR)
        return
    later = "files read later" if format is Format.CONF else "`/etc/nccl.conf`"
    text = f"an empty value keeps {later} from setting {quoted(setting.name)}, and counts as unset"
    yield setting.about("empty-value", text, "remove the setting, or give it a value")


def _unexpanded(setting: Setting, format: Format) -> Message | None:
    value = setting.value
    if match := _PLACEHOLDER.search(value):
        text = f"{quoted(match.group())} is a placeholder; NCCL takes it as it stands"
        return setting.about("unexpanded", text, "write the value for this system")
    if format not in (Format.CONF, Format.ENV_FILE):
        return None
    if _TEMPLATE.search(value):
        text = f"a template that is not filled in; NCCL takes {quoted(value)} as it stands"
        return setting.about("unexpanded", text, "check the file that is made from the template")
    if _VARIABLE.search(value):
        reader = "NCCL" if format is Format.CONF else "Docker"
        text = f"{reader} expands no variables: {quoted(value)} stands as it is"
        return setting.about("unexpanded", text, "write the value out")
    return None


def _unwrapped(setting: Setting, format: Format, variable: Variable | None) -> tuple[str, list[Message]]:
    """The value its author meant, and what is around it."""
    value, said = setting.value, []
    is_number = variable is not None and _reads_number(variable)
    for unwrap in (_comment, _quotes, _spaces):
        value, message = unwrap(setting, value, format, is_number)
        if message is not None:
            said.append(message)
    return value, said


def _comment(setting: Setting, value: str, format: Format, is_number: bool) -> tuple[str, Message | None]:
    comment = _INLINE_COMMENT.search(value)
    if comment is None or format not in (Format.CONF, Format.ENV_FILE):
        return value, None
    does = "NCCL drops it behind a number" if is_number else "it becomes a part of the value"
    text = f"there are no comments behind a value: {does}"
    mild = Severity.NOTICE if is_number and value[:1] not in "'\"" else None
    hint = "give the comment a line of its own"
    return value[: comment.start()].rstrip(), setting.about("inline-comment", text, hint, severity=mild)


def _quotes(setting: Setting, value: str, format: Format, is_number: bool) -> tuple[str, Message | None]:
    if value[:1] not in ("'", '"'):
        return value, None
    gets = f"NCCL gets {quoted(value)}" + (", which is 0" if is_number else "")
    text = f"the quotes become a part of the value: {gets}"
    mild = Severity.WARNING if format is Format.ENV_FILE else None
    if mild:
        text = f"Docker keeps the quotes, so {gets}; Compose drops them"
    message = setting.about("quotes-kept", text, "write the value without quotes", severity=mild)
    return value.strip("'\""), message


def _spaces(setting: Setting, value: str, format: Format, is_number: bool) -> tuple[str, Message | None]:
    if value == value.strip() or setting.name in _MAY_HOLD_SPACES:
        return value, None
    side = "before" if value[:1].isspace() else "behind"
    text = f"a space {side} the value" + (": harmless for a number" if is_number else ", which NCCL keeps")
    mild = Severity.NOTICE if is_number else None
    return value.strip(), setting.about("space-around-value", text, "remove it", severity=mild)


# --- numbers ---


def _number(setting: Setting, value: str, variable: Variable, target: Target) -> Iterator[Message]:
    number = read_number(value)
    if not number.is_number:
        yield _no_number(setting, value, variable)
    elif number.overflows and setting.name not in _UNSIGNED:
        text = f"{quoted(value)} is more than 64 bits: NCCL takes its default and logs `Invalid value`"
        yield setting.about("number-overflow", text)
    elif number.rest.strip():
        yield _with_rest(setting, value, number, variable)
    elif number.is_octal:
        text = f"a leading zero makes an octal number: NCCL reads {quoted(value)} as {number.value}"
        yield setting.about("octal-number", text, f"write `{value.lstrip('+-').lstrip('0') or '0'}`")
    else:
        yield from _judged(setting, number.value, variable, target)


def _no_number(setting: Setting, value: str, variable: Variable) -> Message:
    word = value.lower()
    if word in _YES | _NO:
        hint = f"write `{setting.name}={int(word in _YES)}`"
        return setting.about("boolean-word", f"NCCL reads a number here: {quoted(value)} is 0", hint)
    takes = f"{variable.name} takes {_in_words(variable)}"
    return setting.about("not-a-number", f"NCCL reads a number here: {quoted(value)} is 0", takes)


def _with_rest(setting: Setting, value: str, number: Number, variable: Variable) -> Message:
    factor = _SUFFIXES.get(number.rest.strip().lower())
    text = f"NCCL drops {quoted(number.rest.strip())}: {quoted(value)} is {number.value}"
    if factor is not None:
        return setting.about("number-suffix", text, f"write `{setting.name}={number.value * factor}`")
    return setting.about("not-a-number", text, f"{variable.name} takes {_in_words(variable)}")


def _judged(setting: Setting, value: int, variable: Variable, target: Target) -> Iterator[Message]:
    if isinstance(variable.allowed, tuple):
        allowed = {a for a in variable.allowed if isinstance(a, int)} | _default_numbers(variable)
        if value not in allowed:
            text = f"{value} is not one of {_in_words(variable)}"
            yield setting.about("value-not-allowed", text, severity=Severity.WARNING)
    yield from out_of_range(setting, value, target)


def _default_numbers(variable: Variable) -> set[int]:
    """-2 of `-2: on for sm80`: writing the default out is nobody's mistake."""
    number = read_number(str(variable.default))
    return {number.value} if number.is_number else set()


def _in_words(variable: Variable) -> str:
    if isinstance(variable.allowed, tuple):
        words = [f"`{a}`" for a in variable.allowed]
        return ", ".join(words[:-1]) + f" or {words[-1]}" if len(words) > 1 else words[0]
    return variable.allowed or "a whole number"


# --- words and paths ---


def _word(setting: Setting, value: str, variable: Variable) -> Iterator[Message]:
    allowed = [str(a) for a in variable.allowed or ()]
    if value in allowed or (setting.name in _ANY_CASE and value.upper() in allowed):
        return
    if setting.name in _LEVELS and value[:1].isdigit():
        level = _LEVELS_OF_DIGITS[min(read_number(value).value, len(_LEVELS_OF_DIGITS) - 1)]
        text = (
            f"NVIDIA discourages numbers here, since their meaning may change: {quoted(value)} is `{level}`"
        )
        yield setting.about("legacy-level-number", text, f"write `{level}`")
        return
    near = nearest(value, allowed)
    does = "and ignores it without a message" if variable.risk == "ignored" or setting.name in _LEVELS else ""
    text = f"NCCL does not know {quoted(value)} here{', ' if does else ''}{does}"
    hint = f"did you mean `{near}`?" if near else f"known: {_in_words(variable)}"
    yield setting.about("value-not-allowed", text, hint)


def _path(setting: Setting, value: str, format: Format) -> Iterator[Message]:
    if value.startswith("~") and format is not Format.SHELL:
        text = f"NCCL does not expand `~`: it opens {quoted(value)} as it stands"
        yield setting.about("tilde-not-expanded", text, "write the whole path")
    elif not value.startswith(("/", "~")) and setting.name != "NCCL_DEBUG_FILE" and format is Format.CONF:
        text = f"{quoted(value)} is looked for in the working directory of each job"
        yield setting.about("relative-path", text, "write the whole path")


def missing_paths(listing: Listing, exists: Callable[[str], bool]) -> Iterator[Message]:
    """Files that settings name and that are not there, asked of `exists`."""
    for setting in listing.settings:
        what_happens = _MISSING.get(setting.name)
        if what_happens is None or not setting.is_plain:
            continue
        path, _ = _unwrapped(setting, listing.format, None)
        if path.startswith("/") and not exists(path):
            severity, text = what_happens
            yield setting.about("missing-path", f"{quoted(path)} is not there: {text}", severity=severity)


_PLUGIN_GONE = "the plugin is not loaded, and NCCL goes on without it"
_MISSING: dict[str, tuple[Severity | None, str]] = {
    "NCCL_GRAPH_FILE": (Severity.ERROR, "communicators fail to start"),
    "NCCL_TOPO_FILE": (None, "NCCL goes on without it and detects the topology"),
    "NCCL_TUNER_CONFIG_FILE": (None, "the tuner plugin has no table"),
    "NCCL_TUNER_CONFIG_PATH": (None, "the tuner plugin has no table"),
    "NCCL_NET_PLUGIN": (None, _PLUGIN_GONE),
    "NCCL_TUNER_PLUGIN": (None, _PLUGIN_GONE),
    "NCCL_PROFILER_PLUGIN": (None, _PLUGIN_GONE),
    "NCCL_ENV_PLUGIN": (None, _PLUGIN_GONE),
}
