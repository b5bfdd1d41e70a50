"""Formats of file sources, and the options of Spark 4.2's reader of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
"""By format. Options that have an effect on writing only are left out."""
MODES = ("PERMISSIVE", "DROPMALFORMED", "FAILFAST")
"""What Spark's readers of JSON and CSV do with a record that does not parse."""


def check_reader(format: str, options: Mapping[str, Any]) -> None:
    """Raises ConfigError for a format, an option or a mode that does not exist. Spark would ignore the last two.

    A name with a dot, such as ``fs.s3a.endpoint``, is one of Hadoop's settings, and is not checked.
    """
    known = READER_OPTIONS.get(str(format).lower())
    if known is None:
        raise ConfigError("there is no such format of a file source", hint=did_you_mean(str(format), READER_OPTIONS),
                          format=format)  # fmt: skip
    folded = {name.lower() for name in known}
    for name, value in options.items():
        if name.lower() not in folded and "." not in name:
            raise ConfigError("the reader of a file source has no such option", hint=did_you_mean(name, sorted(known)),
                              option=name, format=format)  # fmt: skip
        if name.lower() == "mode" and str(value).upper() not in MODES:
            raise ConfigError("the reader of a file source has no such mode", hint=did_you_mean(str(value), MODES),
                              mode=value, format=format)  # fmt: skip
