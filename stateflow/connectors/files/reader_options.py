"""Formats of file sources, and the options of Spark 4.2's readers."""

from __future__ import annotations

from collections.abc import Mapping, Set

from stateflow.errors import ConfigError
from stateflow.similar_names import did_you_mean

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
"""Formats whose records Spark parses from text."""
MODES = ("PERMISSIVE", "DROPMALFORMED", "FAILFAST")
"""How Spark's readers of JSON and CSV handle a record that cannot be parsed."""


def check_reader(format: str, options: Mapping[str, object]) -> None:
    """Checks format, options and mode of a file source; Spark would ignore a wrong option or mode.

    A name with a dot, such as ``fs.s3a.endpoint``, is a Hadoop setting and is not checked.

    Raises:
        ConfigError: the format, an option or the mode does not exist.
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
        if name.lower() == "mode" and str(value).upper() not in MODES:
            raise ConfigError(
                "unknown mode of a file source", hint=did_you_mean(str(value), MODES), mode=value, format=format
            )


def check_names_columns(format: str) -> None:
    """Raises ConfigError for a format to whose files a `ColumnPolicy` cannot be applied."""
    if format.lower() not in NAMING:
        raise ConfigError(
            "a policy for columns has no effect on files of this format",
            hint="remove columns=…; only Parquet and ORC files contain the names of all their columns",
            format=format,
        )


def defaults(format: str, given: Set[str]) -> dict[str, str]:
    """Returns the options of Spark's reader whose default is not Spark's.

    Args:
        format: name of the format, in lower case.
        given: options that the user has set, in lower case.
    """
    found = {"mode": "FAILFAST"} if format in PARSED else {}
    if format == "csv" and "header" in given:
        found["enforceSchema"] = "false"
    return {name: value for name, value in found.items() if name.lower() not in given}
