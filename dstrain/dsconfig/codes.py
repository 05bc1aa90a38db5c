"""The faults that reading a configuration can find: one table, ids DS001 to DS019, stable for ever.

A rule sees data that was read; these see the text. The docs pages and `config explain DS004` are made from this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from dstrain.core.finding import Severity


@dataclass(frozen=True, slots=True)
class Code:
    """One kind of reading fault.

    Args:
        id: `DS003`; never reused.
        severity: what a finding is unless the mode of the reader changes it.
        title: one line, shown in lists and as the head of its page.
        help: why it matters, what DeepSpeed and others do, and what to do.
        unreadable: nothing could be read: the data is {} and no rule runs (exit code 2).
    """

    id: str
    severity: Severity
    title: str
    help: str
    unreadable: bool = False


_TABLE = (
    Code(
        "DS001",
        Severity.ERROR,
        "The file cannot be read as a configuration",
        "The text breaks off or turns into something that no reader understands, and too little is left to go on from. "
        "The place is where reading stopped; the cause is there or just before it.",
        unreadable=True,
    ),
    Code(
        "DS002",
        Severity.ERROR,
        "A syntax fault stops DeepSpeed's reader",
        "A bracket, quote, comma, colon or value is missing or is one too many. DeepSpeed stops at it with a "
        "traceback. We read on as the text seems to be meant, so that the other faults are found in the same run.",
    ),
    Code(
        "DS003",
        Severity.ERROR,
        "A key is written twice in one section",
        "DeepSpeed 0.19.8 refuses duplicate keys in a file (`dict_raise_error_on_duplicate_keys`); transformers and "
        "most other readers silently take the last one. We check the last one. Keep one. `config fix` removes a "
        "repetition only where both say the same.",
    ),
    Code(
        "DS004",
        Severity.ERROR,
        "A Python literal where JSON is due",
        "`True`, `False`, `None`, tuples and numbers such as `1_000` or `.5` are Python. DeepSpeed's reader takes them "
        "as text ('True'), and a text is true wherever a boolean is asked for, even 'False'. Write `true`, `false`, "
        "`null`, a list, a plain number.",
    ),
    Code(
        "DS005",
        Severity.ERROR,
        "There is text around the configuration",
        "A fence of markdown (```), a `name =` or prose was copied along. DeepSpeed stops at it.",
    ),
    Code(
        "DS006",
        Severity.ERROR,
        "A number that is none",
        "NaN, Infinity and numbers too large for a double are no JSON. DeepSpeed's reader takes the first two as text "
        "and dies with an OverflowError on the last. The value is kept as text for the rest of the checks.",
    ),
    Code(
        "DS007",
        Severity.ERROR,
        "Typographic quotes where straight ones are due",
        'Word processors and chat windows turn " into “ and ”. DeepSpeed makes them part of the name or value.',
    ),
    Code(
        "DS008",
        Severity.ERROR,
        "The root is not a section",
        "A configuration is one mapping of keys to values ({...}). This text holds a list or a single value.",
        unreadable=True,
    ),
    Code(
        "DS009",
        Severity.ERROR,
        "The file is empty",
        "There is no key in it. DeepSpeed reads an empty file as {} and then asks for a batch size.",
        unreadable=True,
    ),
    Code(
        "DS010",
        Severity.ADVICE,
        "Only HJSON readers accept this",
        "DeepSpeed reads its files with the hjson package, which allows comments, trailing or missing commas and text "
        "without quotes. transformers, accelerate and editors read strict JSON and refuse them, so for "
        "`--for transformers` this is an error. A file named .hjson is never advised about it.",
    ),
    Code(
        "DS011",
        Severity.ERROR,
        "Text without quotes swallows what follows it",
        "In HJSON a text without quotes runs to the end of its line, with the comma, the bracket or the comment that "
        "stands there: `device: cpu,` is the text 'cpu,'. Write quotes around it.",
    ),
    Code(
        "DS012",
        Severity.ERROR,
        "The file is not UTF-8",
        "JSON is UTF-8. DeepSpeed opens the file in the encoding of the locale and dies with a UnicodeDecodeError. "
        "Save it as UTF-8; `config fix` does.",
    ),
    Code(
        "DS013",
        Severity.ADVICE,
        "The file starts with a byte order mark",
        "Some editors write one. DeepSpeed skips it; transformers does not (`Unexpected UTF-8 BOM`): an error for "
        "`--for transformers`.",
    ),
    Code(
        "DS014",
        Severity.ERROR,
        "YAML where the reader expects JSON",
        "dstrain reads YAML, DeepSpeed and transformers do not. Name a YAML file .yaml, and hand the others JSON.",
    ),
    Code(
        "DS015",
        Severity.WARNING,
        "A number that YAML takes for text",
        "YAML 1.1 wants a dot in the mantissa and a sign in the exponent: `1e-5` and `5e8` are text to PyYAML. dstrain "
        "reads the number that is meant; other readers get a text. Write `1.0e-5`.",
    ),
    Code(
        "DS016",
        Severity.ADVICE,
        "A word that only YAML 1.1 takes for true or false",
        "yes, no, on and off are booleans in YAML 1.1 (PyYAML) and text in YAML 1.2. dstrain reads a boolean. Write "
        "true or false.",
    ),
    Code(
        "DS017",
        Severity.ERROR,
        "Nested too deep",
        "No DeepSpeed section lies deeper than a dozen levels. A file nested deeper than the limit is damaged.",
        unreadable=True,
    ),
    Code(
        "DS018",
        Severity.ERROR,
        "The file is too large",
        "A configuration is a few KiB. Above 64 MiB it is another file, and it is not read.",
        unreadable=True,
    ),
)

READING: Mapping[str, Code] = MappingProxyType({code.id: code for code in _TABLE})
