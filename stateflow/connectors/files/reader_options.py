"""Options of Spark's file readers that `FileSource` has, checked before a run, and the decoders that they describe.

Spark ignores unknown options, and some wrong values. Here each of them is an error.
"""

from __future__ import annotations

import codecs
from collections.abc import Mapping

from stateflow.api.schema import RowSchema
from stateflow.connectors.files.text_files import (
    INFINITY,
    NAN,
    NEGATIVE_INFINITY,
    CsvRecords,
    DecodedFormat,
    JsonDocument,
    JsonLines,
    Lines,
    TextLines,
    text_column,
)
from stateflow.connectors.text_values import FORM_OPTIONS, TextForms
from stateflow.errors import ConfigError
from stateflow.helpers import did_you_mean
from stateflow.types.columns.shapes import Leaf

_TEXT_OF_ROWS = """mode columnNameOfCorruptRecord dateFormat timestampFormat timestampNTZFormat timeFormat timeZone
    locale enableDateTimeParsingFallback encoding charset lineSep multiLine samplingRatio singleVariantColumn"""
_JSON = """allowBackslashEscapingAnyCharacter allowComments allowNonNumericNumbers allowNumericLeadingZeros
    allowSingleQuotes allowUnquotedControlChars allowUnquotedFieldNames dropFieldIfAllNull inferTimestamp
    prefersDecimal primitivesAsString useUnsafeRow"""
_CSV = """sep delimiter quote escape charToEscapeQuoteEscaping comment header inferSchema preferDate enforceSchema
    columnPruning emptyValue nullValue nanValue positiveInf negativeInf ignoreLeadingWhiteSpace
    ignoreTrailingWhiteSpace inputBufferSize maxColumns maxCharsPerColumn unescapedQuoteHandling"""
_ALL = """basePath ignoreCorruptFiles ignoreMissingFiles pathGlobFilter recursiveFileLookup maxFileAge fileNameOnly
    maxCachedFiles discardCachedInputRatio"""


_SHOWN = 100
READER_OPTIONS: Mapping[str, frozenset[str]] = {
    name: frozenset(f"{own} {_ALL}".split())
    for name, own in {
        "parquet": "mergeSchema datetimeRebaseMode int96RebaseMode",
        "json": f"{_TEXT_OF_ROWS} {_JSON}",
        "csv": f"{_TEXT_OF_ROWS} {_CSV}",
        "orc": "mergeSchema",
        "text": "lineSep wholetext encoding",
    }.items()
}
"""Options by format, without those that only affect writing."""
NAMING = {"parquet", "orc"}
"""Formats whose files contain the names of all their columns."""
PARSED = {"json", "csv"}
"""Formats whose records are parsed from text."""
DECODED = {"json", "csv", "text"}
"""Formats that are decoded by `text_format`, not by Spark."""
_LISTING = """basepath pathglobfilter recursivefilelookup maxfileage filenameonly maxcachedfiles
    discardcachedinputratio"""
_TIMES = " ".join(FORM_OPTIONS)
_IMPLEMENTED: Mapping[str, frozenset[str]] = {
    name: frozenset(f"{own} {_LISTING} mode encoding charset linesep".split())
    for name, own in {
        "json": f"{_TIMES} multiline",
        "csv": f"""{_TIMES} multiline sep delimiter quote escape comment header enforceschema nullvalue emptyvalue
            nanvalue positiveinf negativeinf ignoreleadingwhitespace ignoretrailingwhitespace""",
        "text": "wholetext",
    }.items()
}
_CHOICES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("datetimerebasemode", "int96rebasemode"), ("EXCEPTION", "CORRECTED", "LEGACY")),
    **dict.fromkeys(
        ("mergeschema", "recursivefilelookup", "ignorecorruptfiles", "ignoremissingfiles", "filenameonly"),
        ("true", "false"),
    ),
}
"""The values of options, in lower case, that Spark would refuse only when it reads the first file."""
_MOST: Mapping[str, tuple[type[int] | type[float], float]] = {
    "maxcachedfiles": (int, (1 << 31) - 1),
    "discardcachedinputratio": (float, 1),
}
"""The types and highest values of numbers, which Spark would parse when a run begins to read."""
_HIDING = {"ignorecorruptfiles", "ignoremissingfiles"}
_OF_SPARK = set(_LISTING.split())
_NONE = frozenset[str]()
_AS_ALWAYS = {("recursivefilelookup", "true"), ("ignorecorruptfiles", "false"), ("ignoremissingfiles", "false")}
"""Options with the only values that this source supports: they change nothing."""
_FAILFAST = "FAILFAST"
_NOT_OF_FILES = {"idna", "punycode", "unicode_escape", "raw_unicode_escape"}
"""Encodings of names and of source code."""


def check_reader(format: str, options: Mapping[str, object]) -> None:
    """Checks format and options of a file source; Spark would ignore a wrong option.

    A name with a dot, such as ``fs.s3a.endpoint``, is a Hadoop setting and is not checked.

    Raises:
        ConfigError: the format or an option does not exist, or is not supported.
    """
    known = READER_OPTIONS.get(str(format).lower())
    if known is None:
        raise ConfigError(
            "unknown format of a file source", hint=did_you_mean(str(format), READER_OPTIONS), format=format
        )
    folded = {name.lower() for name in known}
    for name, value in options.items():
        if name.lower() not in folded and "." not in name:
            raise ConfigError(
                "unknown option of a file source", hint=did_you_mean(name, sorted(known)), option=name, format=format
            )
        choices = _CHOICES.get(name.lower())
        if choices is not None and str(value).lower() not in map(str.lower, choices):
            raise _unsupported(name, value, f"give {', '.join(choices[:-1])} or {choices[-1]}")
        if name.lower() in _MOST:
            _check_number(name, value)
        if name.lower() in _HIDING and str(value).lower() == "true":
            raise ConfigError(
                "the file source does not support a reader option",
                hint='rows would be lost without a trace: use on_corrupt_file="quarantine", which records the files',
                option=name,
            )
        if name.lower() == "mode" and str(value).upper() != _FAILFAST:
            raise ConfigError(
                "the file source has only the mode FAILFAST",
                hint="other modes change or drop rows without a message: skip corrupt files with "
                'on_corrupt_file="quarantine", or read lines with format="text" and decode them in a flat_map, with '
                "dead letters for those that fail",
                mode=value,
                format=format,
            )
        implemented = _IMPLEMENTED.get(str(format).lower())
        if implemented is not None and name.lower() not in implemented | _HIDING and "." not in name:
            raise ConfigError(
                "the file source does not support a reader option",
                hint="Spark's parser has it, and this source decodes its files itself, with the declared columns; "
                f"remove it, or use one of {', '.join(sorted(n for n in known if n.lower() in implemented))}",
                option=name,
                format=format,
            )


def text_format(format: str, options: Mapping[str, object], base: str) -> DecodedFormat:
    """Returns the decoder of the files of a source.

    Args:
        format: one of `DECODED`.
        options: options of the source, which `check_reader` has accepted.
        base: URI of the folder below which names of folders have values of columns.

    Raises:
        ConfigError: the value of an option is not supported.
    """
    given = {name.lower(): value for name, value in options.items()}
    encoding = _encoding(str(given.get("encoding", given.get("charset", "utf-8"))))
    separator = str(given.get("linesep", ""))
    if format == "csv":
        if separator not in ("", "\n", "\r", "\r\n"):
            raise _unsupported("lineSep", separator, "lines of CSV end with LF, CR LF or CR")
        decoder = _csv_records(given)
        splits = decoder.has_even_quotes and encoding == "utf-8"
        return DecodedFormat(decoder, base, encoding, decoder.quote.encode(), splits, is_csv=True)
    lines, forms = Lines(separator.encode()), TextForms.of(given)
    is_whole = _flag(given, "multiline") or _flag(given, "wholetext")
    splits = not is_whole and encoding == "utf-8" and separator in ("", "\n")
    if format == "text":
        return DecodedFormat(TextLines(lines, is_whole), base, encoding, splits=splits)
    return DecodedFormat(JsonDocument(forms) if is_whole else JsonLines(forms, lines), base, encoding, splits=splits)


def is_for_spark(option: str) -> bool:
    """Returns whether an option concerns how Spark lists or opens files, and not their content."""
    return option.lower() in _LISTING.split() or "." in option


def check_decoded(format: str, schema: RowSchema) -> None:
    """Raises ConfigError for columns that files of a format of `DECODED` cannot have."""
    if format == "csv":
        nested = [column.name for column in schema.columns if not isinstance(column.shape, Leaf)]
        if nested:
            raise ConfigError(
                "a column of CSV files cannot be a list, a dict or a class",
                hint="declare the columns as str, and decode them in a function",
                columns=nested,
            )
    if format == "text" and text_column(schema.columns) is None:
        raise ConfigError(
            "a row class of text files needs a field of type str for the line",
            hint="declare value: str",
            row_class=schema.row_class.__name__,
        )


def _csv_records(given: Mapping[str, object]) -> CsvRecords:
    separator = str(given.get("sep", given.get("delimiter", ","))).replace("\\t", "\t")
    quote, escape = (_character(given, name, default) for name, default in (("quote", '"'), ("escape", "")))
    if not separator or separator == quote or set(separator) & {"\n", "\r"}:
        raise _unsupported("sep", separator, "give one or more characters that are neither quote nor end of a line")
    return CsvRecords(
        TextForms.of(given),
        separator,
        quote,
        "" if escape == quote else escape,
        _character(given, "comment", ""),
        header=_flag(given, "header"),
        checks_header=not _flag(given, "enforceschema"),
        null=str(given.get("nullvalue", "")),
        empty=str(given.get("emptyvalue", "")),
        nan=str(given.get("nanvalue", NAN)),
        infinity=str(given.get("positiveinf", INFINITY)),
        negative_infinity=str(given.get("negativeinf", NEGATIVE_INFINITY)),
        trims_start=_flag(given, "ignoreleadingwhitespace"),
        trims_end=_flag(given, "ignoretrailingwhitespace"),
    )


def check_stored(format: str, options: Mapping[str, str]) -> None:
    """Raises ConfigError for files in a bucket that only Spark can read."""
    hint = "stateflow lists and reads files at s3://, gs://, az:// and webhdfs:// without Spark: "
    if format not in {"parquet", *DECODED}:
        raise ConfigError(
            "files of this format cannot be read at this address",
            hint=f"{hint}convert them to Parquet, or read them with Hadoop's file systems, at s3a:// or abfss://",
            format=format,
        )
    for name, value in options.items():
        has_effect = name.lower() in {"pathglobfilter", "basepath", *(_IMPLEMENTED.get(format, _NONE) - _OF_SPARK)}
        if not has_effect and (name.lower(), str(value).lower()) not in _AS_ALWAYS:
            raise ConfigError(
                "an option of a file source has no effect at this address",
                hint=f"{hint}remove the option; credentials and endpoints come from environment variables",
                option=name,
            )


def _encoding(name: str) -> str:
    try:
        # A codec that is not of a character set, such as hex, raises LookupError.
        "".encode(name)
        found = codecs.lookup(name).name
        if found.replace("-", "_") in _NOT_OF_FILES:
            raise LookupError(found)
        return found
    except (LookupError, UnicodeError):
        raise _unsupported("encoding", name, "use UTF-8, ISO-8859-1, windows-1252, UTF-16 or another one") from None


def _character(given: Mapping[str, object], name: str, default: str) -> str:
    value = str(given.get(name, default))
    value = "" if value == "\0" else value
    if len(value) > 1:
        raise _unsupported(name, value, "give one character")
    return value


def _flag(given: Mapping[str, object], name: str) -> bool:
    value = str(given.get(name, "false")).lower()
    if value not in ("true", "false"):
        raise _unsupported(name, value, "give true or false")
    return value == "true"


def _check_number(name: str, value: object) -> None:
    parse, most = _MOST[name.lower()]
    try:
        fits = 0 <= parse(str(value)) <= most
    except ValueError:
        fits = False
    if not fits:
        raise _unsupported(name, value, f"give {'an integer' if parse is int else 'a number'} from 0 to {most}")


def _unsupported(name: str, value: object, hint: str) -> ConfigError:
    return ConfigError(
        "the value of a reader option is not supported", hint=hint, option=name, value=str(value)[:_SHOWN]
    )


def check_names_columns(format: str) -> None:
    """Raises ConfigError for a format to whose files a `ColumnPolicy` cannot be applied."""
    if format.lower() not in NAMING:
        raise ConfigError(
            "a policy for columns has no effect on files of this format",
            hint="remove columns=…; only Parquet and ORC files contain the names of all their columns",
            format=format,
        )
