"""The forms of a job's DAGs: their params, with the JSON schemas that Airflow checks before a DAG run exists.

Airflow checks each param by itself: a wrong value is refused with the param's name and no DAG run is created, both for
the form and for the REST API. What depends on the job, such as the name of an operator, or on two params, is checked by
the tasks.

Airflow's form decides what a schema looks like:

- It draws code in Markdown over the line above, so that examples are bold.
- It shows `description_md` only for a param without a `description`, and nothing at all if every param has a `section`.
- It replaces a number below `minimum` by the minimum without a message, and checks no other part of a schema itself.

No schema lists savepoints, checkpoints or operators as options: it is part of the serialized DAG, so each savepoint
would make a new version of the DAG, and the options would be those of the time when the file was parsed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import NotRequired, TypedDict

from airflow.sdk import Param

from stateflow_airflow.dags.job import StateflowJob
from stateflow_airflow.operators.retention_limits import Retention, TableMaintenance

# -- What the library accepts. DAG files do not import it, because it imports Spark and Arrow; tests compare both. -----

_SURROGATES = r"\ud800-\udfff"
"""Halves of characters, which no file can store."""
_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
_DAY = r"(?!0000)[0-9]{4}(?:-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[1-9]|1[0-2])(?:0[1-9]|[12][0-9]|3[01]))"
_WEEK = r"(?!0000)[0-9]{4}(?:-W(?:0[1-9]|[1-4][0-9]|5[0-3])(?:-[1-7])?|W(?:0[1-9]|[1-4][0-9]|5[0-3])[1-7]?)"
_CLOCK = r"(?:[01][0-9]|2[0-3])(?::[0-5][0-9](?::[0-5][0-9](?:[.,][0-9]+)?)?|[0-5][0-9](?:[0-5][0-9](?:[.,][0-9]+)?)?)?"
_TIMESTAMP = rf"(?:{_DAY}|{_WEEK})(?:[^\n\r\v\f\x1c-\x1e\x85\u2028\u2029{_SURROGATES}]{_CLOCK}(?:Z|[+-]{_CLOCK})?)?"
"""A time in ISO 8601; the calendar decides whether a month has a 31st day, and a year a 53rd week."""
_NUMBER = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
_FILE = r"~[^/]*/|/|(?i:file):(?://(?:localhost)?/|/(?!/))"
_BUCKET = r"(?i:s3|gs|az|s?webhdfs)://[^/]"
_PATH = rf"(?:{_FILE}|{_BUCKET})[^\x00{_SURROGATES}]*"
_POINT = (
    rf"(?!None\s*$)[A-Za-z0-9._-]{{1,255}}|before:{_TIMESTAMP}"
    rf"|before:{_NAME}=\s*(?:{_NUMBER}|[\[{{][^{_SURROGATES}]*[\]}}])"
)
_REF = rf"[A-Za-z0-9][^\s,={_SURROGATES}]*"
"""The uid of an operator or a source, or a state as UID.STATE or UID:STATE."""
_LINE_END = r"[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]"
_BLANKS = r"[^\S\n\r\v\f\x1c-\x1e\x85\u2028\u2029]*"
_VISIBLE = (
    r"[^\s\u0000-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u180e"
    rf"\u200b-\u200f\u2028-\u202e\u2060-\u2069\u3164\ufeff\ufff9-\ufffb\U000e0000-\U000e007f{_SURROGATES}]"
)
"""A character that a reader sees."""
_REST = rf"(?:{_VISIBLE}| )*"
_POSITION = (
    rf"{_NAME}{_BLANKS}={_BLANKS}(?:keep|earliest|latest|timestamp:{_TIMESTAMP}"
    rf"|position:{_REST}{_VISIBLE}|\{{{_REST}\}}|\[{_REST}\])"
)
_PARTS = ("target", "head", "state", "sources", "sinks", "versions", "kept", "claim")
_PART = rf"(?:{'|'.join(_PARTS)})=[0-9a-f]{{12}}"
_STEPS = (
    "batch.begin",
    "task.restored",
    "task.processed",
    "batch.reported",
    "commit.stored",
    "commit.manifest",
    "commit.after",
    "publish.before",
    "publish.after",
    "batch.end",
)
"""The failpoints that each batch of a run passes."""


Checks = TypedDict("Checks", {"if": dict[str, object], "else": dict[str, list[str]]})
"""The keywords of a JSON schema that check a value."""


class Shown(TypedDict):
    """The keywords of a JSON schema that Airflow's form shows."""

    title: str
    description_md: str
    section: NotRequired[str]


@dataclass(frozen=True)
class Rule:
    """A rule for the values of a param.

    Attributes:
        schema: the JSON schema of valid values; it says nothing of values of other types.
        expected: the same in words, for the error: a pattern alone tells a user little.
    """

    schema: Mapping[str, object]
    expected: str

    def keywords(self, title: str) -> Checks:
        """Returns the keywords of a JSON schema with this rule, whose error is ``['TITLE: …'] was expected``."""
        # A list equals no value of the params, so that the else-branch refuses each.
        return {"if": dict(self.schema), "else": {"const": [f"{title}: {self.expected}"]}}


def _optional(body: str, expected: str, blank: str = r"\s") -> Rule:
    """Returns the rule for a text that is blank, or matches between blanks. `body` begins and ends with no blank."""
    # A blank text is tried first. As in all patterns of this module, no part can be read in two ways: a long text costs
    # linear time. Otherwise, everyone who may trigger a DAG could keep the API server busy.
    return Rule({"pattern": rf"^{blank}*$|^{blank}*(?:{body}){blank}*$"}, expected)


def _words(word: str, expected: str) -> Rule:
    """Returns the rule for a list of words that blanks or commas separate."""
    return _optional(rf"{word}(?:[\s,]+{word})*", expected, r"[\s,]")


SAVEPOINT_NAME = _optional(
    rf"(?!(?:latest|None|[0-9]+)\s*$){_NAME}",
    "1 to 100 letters, digits, dots, underscores or hyphens, such as before-v2; not a number, and not latest",
)
SAVEPOINT_TO_DELETE = _optional(
    r"(?!None\s*$)[A-Za-z0-9._-]{1,255}", "the name of a savepoint, or of its folder, such as before-v2; or nothing"
)
TARGET = Rule(
    # A path takes the blanks at its end itself: otherwise a long text would cost quadratic time.
    {"pattern": rf"^\s*(?:(?:{_POINT})\s*|{_PATH})$", "maxLength": 4096},
    "latest, a checkpoint's id such as 17, a savepoint's name, a path that begins with / or a URI such as "
    "s3://bucket/path, before:2026-01-31T03:00 (UTC), or before:SOURCE=OFFSET",
)
REASON = Rule(
    {"pattern": rf"^(?!\s*None\s*$)(?=[^{_SURROGATES}]*$)[\s\S]*?{_VISIBLE}"},
    "a text that is not blank, such as: version 2 counts twice",
)
TEXT = Rule({"pattern": rf"^[^{_SURROGATES}]*$"}, "a text of whole characters")
SINKS = _words(_NAME, "uids of sinks with commas between them, such as totals,late")
REFS = _words(
    rf"[A-Za-z0-9][^\s,{_SURROGATES}]*",
    "uids of operators, or states as UID.STATE, with commas between them, such as sessions,totals.sum",
)
NEW_NAMES = _words(
    rf"{_REF}=[A-Za-z0-9][^\s,{_SURROGATES}]*", "OLD=NEW with commas between them, such as sums=totals,trips.n=legs.n"
)
POSITIONS = _optional(
    rf"{_POSITION}(?:{_BLANKS}{_LINE_END}\s*{_POSITION})*",
    "one UID=POSITION per line, with keep, earliest, latest, timestamp:2026-01-31T03:00, position:TEXT or JSON as the "
    "position, such as flights=earliest",
)
EXPECTED_PLAN = _optional(
    rf"(?={_PART}(?:,{_PART}){{0,{len(_PARTS) - 1}}}\s*$)(?!.*\b([a-z]+)=.*\b\1=)\S+",
    "what a page of stateflow has filled in, or nothing",
)
FAILPOINT = _optional(
    rf"(?:{'|'.join(_STEPS)})(?::(?:[1-9][0-9]*)?(?::(?:kill|stop|error))?)?".replace(".", "[.]"),
    f"a step, and the number of times that it passes, such as batch.reported:3; steps are {', '.join(_STEPS)}",
)
AGE = _optional(
    # In ASCII, as the library reads it: otherwise, a long s is a letter s in another case.
    r"(?=[0-9.]*[1-9])[0-9]{1,9}(?:[.][0-9]{1,6})?(?a:\s*(?i:s|secs?|seconds?|m|mins?|minutes?|h|hours?|d|days?))",
    "a duration above 0, such as 36h or 30d; or nothing",
    r"(?a:\s)",
)
AT_LEAST_ONE = Rule({"exclusiveMinimum": 0}, "1 or more, or nothing")


# -- The params of each DAG, in the order of the form ------------------------------------------------------------------

_CHANGED = "If the job has changed since the target"
_SAVEPOINT = "If the target is a savepoint"
_PAGES = "For the pages of stateflow"
_FORMAT = "Format and origin"
_ONE = "Delete a single savepoint"


def run_params(job: StateflowJob, *, asks_for_claim: bool) -> dict[str, Param]:
    """Returns the params of the DAG that runs the job: those of the DAG file, then those that are seldom needed.

    Args:
        job: the job.
        asks_for_claim: whether the form offers the claim mode of the savepoint that the job begins with.
    """
    own = {}
    if asks_for_claim:
        own["claim_mode"] = _claim_mode()
    if not job.is_continuous:
        own["drain"] = flag(
            "Last run: drain",
            "For the last run of a job: fires every event-time timer at its end, so that each open window and session"
            " gives its result now.",
        )
    return {**job.params, **job.run_params, **own, **job.params, **job.run_params}


def savepoint_params(job: StateflowJob) -> dict[str, Param]:
    """Returns the params of the DAG that takes savepoints and stops the job."""
    pause = f" Pause the DAG **{job.name}** first." if job.is_continuous else ""
    return {
        "name": text(
            "Name",
            "To find it later, such as **before-v2**: letters, digits, dots, underscores and hyphens. Empty: its origin"
            " and the time of the DAG run.",
            SAVEPOINT_NAME,
        ),
        "reason": text("Reason", "Stored with the savepoint, such as **upgrade to version 2**.", TEXT),
        "stop": flag(
            "Stop the run",
            f"The run ends with exactly this savepoint, once a user has approved it: tab Required Actions.{pause}"
            " Otherwise, the run continues.",
        ),
        "drain": flag(
            "Drain",
            "For the last run, together with **Stop the run**; without that, the task **savepoint** fails and nothing"
            " is done. Fires every event-time timer before the savepoint, so that each open window and session gives"
            " its result now.",
        ),
        "format": choice(
            "Format",
            "A canonical savepoint takes longer: its entries are written anew.",
            {
                "default": "default: native, of a stop canonical",
                "native": "native: fast, as the state backend stores it",
                "canonical": "canonical: for another state backend or program",
            },
            section=_FORMAT,
        ),
        "origin": choice(
            "Origin",
            "Shown in lists of savepoints. Both are kept until a user deletes them.",
            {"manual": "manual", "upgrade": "upgrade: before a new version of the job"},
            section=_FORMAT,
        ),
    }


def retention_params(retention: Retention, tables: TableMaintenance | None) -> dict[str, Param]:
    """Returns the params of the DAG that deletes; `retention` has their defaults."""
    upkeep = flag(
        "Maintain tables",
        "Combines small files of the job's Delta tables, and deletes files that nothing needs. Readers see the same"
        " rows.",
        default=True,
    )
    return {
        "preview": flag(
            "Preview", "Deletes nothing and takes no savepoint; the log of **collect** lists what would be deleted."
        ),
        "retain": number(
            retention.checkpoints,
            "Checkpoints to keep",
            "The newest ones, such as **10**; a restore to an older one is no longer possible. Fewer than configured"
            " need an approval: tab Required Actions. Empty: the setting of the job's last run.",
        ),
        "savepoints": number(
            retention.savepoints,
            "Periodic savepoints to keep",
            "The newest ones, such as **7**; savepoints that a user has taken are always kept. Fewer than configured"
            " need an approval. Empty: all.",
        ),
        "max_age": text(
            "Age of periodic savepoints",
            "Older ones are deleted as well, such as **36h** or **30d**; the newest one is always kept. A shorter age"
            " than configured needs an approval. Empty: no limit.",
            AGE,
            default=_age_text(retention.max_age),
        ),
        "reason": text(
            "Reason",
            "For the approver, such as **the upgrade is done**; stored in the job's history with the **Savepoint to"
            " delete** only.",
            TEXT,
        ),
        **({"tables": upkeep} if tables else {}),
        "dispose": text(
            "Savepoint to delete",
            "The name of a savepoint of any origin, such as **before-v2**: it is deleted for ever, once a user has"
            " approved it, and no savepoint is taken first. What the other fields say is done as well.",
            SAVEPOINT_TO_DELETE,
            section=_ONE,
        ),
    }


_AGE_UNITS = (("d", timedelta(days=1)), ("h", timedelta(hours=1)), ("m", timedelta(minutes=1)))


def _age_text(age: timedelta | None) -> str | None:
    """Returns an age in the largest unit of which it is a whole number."""
    if age is None:
        return None
    if age <= timedelta():
        raise ValueError(f"Retention(max_age={age!r}) is not above 0; leave it out for no limit")
    whole = (f"{age // length}{unit}" for unit, length in _AGE_UNITS if not age % length)
    return next(whole, f"{age.total_seconds():.6f}".rstrip("0").rstrip(".") + "s")


def recovery_params(job: StateflowJob) -> dict[str, Param]:
    """Returns the params of the DAG that restores the job."""
    first = {
        "target": text(
            "Restore target",
            "A checkpoint's id such as **17**, a savepoint's name or path, **latest**, **before:2026-01-31T03:00** (the"
            " newest point before that time, UTC) or **before:flights=1200** (before an offset of the source). The tab"
            " State lists the points; so does the error of the task **plan** for one that does not exist.",
            TARGET,
            required=True,
        ),
        "reason": text(
            "Reason",
            "For the approver, and stored in the job's history, such as **version 2 counts twice**.",
            REASON,
            required=True,
            multiline=True,
        ),
        "sinks": choice(
            "Tables",
            "Restored tables lose the rows written since the target, and the next run writes them again. Kept tables"
            " still have these rows when the next run writes them again.",
            {"restore": "restore tables with the state", "keep": "keep the tables' current content"},
        ),
        "run": flag(
            "Run the job after the restore",
            f"Once, with the job file of now, even if **{job.name}** is paused. Otherwise, the next run of"
            f" **{job.name}** continues the job, once that DAG is unpaused.",
        ),
    }
    more = {**_changes(), **_savepoint_of_target(), "expected_plan": _expected_plan()}
    return {**first, **job.params, **more, **job.params}


def _changes() -> dict[str, Param]:
    return {
        "keep_tables": text(
            "Tables to keep",
            "Uids of sinks, also of removed ones, such as **totals,late**. Their tables keep all rows while the others"
            " are restored, and the output of input that is read again is written to them again.",
            SINKS,
            section=_CHANGED,
        ),
        "drop": text(
            "State to drop",
            "Uids of operators that the job no longer has, or states, such as **sessions,totals.sum**. Their state is"
            " lost; without this, the plan is refused.",
            REFS,
            section=_CHANGED,
        ),
        "new_names": text(
            "New names",
            "**OLD=NEW** for operators, sources and states that have another name now, such as"
            " **sums=totals,trips.n=trips.count**.",
            NEW_NAMES,
            section=_CHANGED,
        ),
        "source_positions": text(
            "Source positions",
            "Where a source continues instead of at the target, one per line: **flights=earliest**, **latest**,"
            " **keep**, **timestamp:2026-01-31T03:00** (UTC) or the position's JSON. A later position omits rows, an"
            " earlier one reads rows twice.",
            POSITIONS,
            section=_CHANGED,
            multiline=True,
        ),
    }


def _savepoint_of_target() -> dict[str, Param]:
    return {
        "claim_mode": _claim_mode(section=_SAVEPOINT),
        "from_other_job": flag(
            "Allow a savepoint of another job",
            "Only if the target is such a savepoint on purpose: this job then continues with the other one's state.",
            section=_SAVEPOINT,
        ),
    }


def _expected_plan() -> Param:
    return text(
        "Expected plan",
        "Leave it empty. The pages fill in the plan that they have shown, and the question of the approval then says"
        " where the plan differs.",
        EXPECTED_PLAN,
        section=_PAGES,
    )


def note_params() -> dict[str, Param]:
    """Returns the params of the question of an approval."""
    return {"note": text("Note", "Why you approve or reject; stored in the job's history.", TEXT)}


def failpoint(example: str, effect: str) -> Param:
    """Returns the param of a demonstration that kills the first try of a run.

    Args:
        example: a failpoint.
        effect: what happens there.
    """
    return text(
        "Kill the driver at",
        f"For a demonstration of recovery: **{example}** {effect} Empty: kills nothing.",
        FAILPOINT,
    )


def _claim_mode(section: str | None = None) -> Param:
    """Returns the param that decides who owns a savepoint after a restore or the start of a new job root."""
    return choice(
        "Claim mode",
        "A claimed savepoint is deleted once its state is no longer one of the retained checkpoints.",
        {"no-claim": "leave the savepoint as it is", "claim": "the job owns the savepoint, and deletes it later"},
        section=section,
    )


# -- Kinds of params ---------------------------------------------------------------------------------------------------


def text(
    title: str,
    description: str,
    rule: Rule,
    *,
    default: str | None = None,
    required: bool = False,
    multiline: bool = False,
    section: str | None = None,
) -> Param:
    """Returns a param for a text.

    Args:
        title: what the form shows in front of the field.
        description: what the form shows below it, in Markdown: what it does, with an example.
        rule: what the text must be.
        default: the text of an optional param.
        required: whether the form cannot be sent without it. Only the type `null` makes it optional.
        multiline: whether the form shows several lines.
        section: the section of the form, folded at first; None for the first one.
    """
    shown, checks = _shown(title, description, section), rule.keywords(title)
    kind: dict[str, object] = {"type": "string", "minLength": 1} if required else {"type": ["null", "string"]}
    lines = {"format": "multiline"} if multiline else {}
    schema = {**kind, **lines, **shown, **checks}
    return Param(schema=schema) if required else Param(default, schema=schema)


def choice(title: str, description: str, values: Mapping[str, str], section: str | None = None) -> Param:
    """Returns a param with one of a few values, by default the first one; `values` has what the form shows for each."""
    schema = _shown(title, description, section)
    return Param(next(iter(values)), type="string", enum=list(values), values_display=dict(values), **schema)


def number(default: int | None, title: str, description: str) -> Param:
    """Returns a param for a number of things to keep, which may be empty. Without `minimum`: see this module."""
    return Param(default, type=["null", "integer"], **_shown(title, description), **AT_LEAST_ONE.keywords(title))


def flag(title: str, description: str, *, default: bool = False, section: str | None = None) -> Param:
    """Returns a param that a user ticks."""
    return Param(default, type="boolean", **_shown(title, description, section))


def _shown(title: str, description: str, section: str | None = None) -> Shown:
    shown = Shown(title=title, description_md=description)
    # An empty section would be one more.
    return {**shown, "section": section} if section else shown
