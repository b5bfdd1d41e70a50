"""The forms of the DAGs: what Airflow refuses before a DAG run exists is what the library would refuse later."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.api_fastapi.core_api.datamodels.dags import DAGDetailsResponse
from airflow.sdk import DAG, Param
from airflow.sdk.exceptions import ParamValidationError
from airflow.serialization.serialized_objects import DagSerialization
from hypothesis import assume, example, given
from hypothesis import strategies as st

from stateflow import failpoints
from stateflow.checkpoint.restore.graph_map import JobGraph, StoredGraph, parse_maps
from stateflow.checkpoint.restore.plan_document import PlanPart, RestorePlan, differing_parts, expected_plan_of
from stateflow.checkpoint.restore.targets import resolve_target
from stateflow.checkpoint.savepoints.cleanup import SavepointRule
from stateflow.checkpoint.savepoints.names import check_savepoint_name
from stateflow.clock import parse_timestamp
from stateflow.errors import ConfigError, StateflowError
from stateflow.helpers import check_name
from stateflow.runtime.restore.graph_changes import choose_starts
from stateflow_airflow.dags import Retention, StateflowJob, TableMaintenance, failpoint, stateflow_dags
from stateflow_airflow.dags.forms import retention_params
from stateflow_airflow.failures import PermanentFailure
from stateflow_airflow.operators.base import escape
from stateflow_airflow.operators.template_values import to_count, to_duration, to_lines, to_words
from stateflow_airflow.spark import SparkSubmit
from tests.airflow import pages_airflow
from tests.airflow.conftest import REPOSITORY
from tests.airflow.fakes import fails
from tests.airflow.pages_airflow import Api
from tests.support.local_jobs import plan_restore
from tests.ui.pages_job import PagesJob

# Airflow 3.2, with the SQLAlchemy of later ones.
pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated")

FAMILY = """
from airflow.sdk import Param
from stateflow_airflow.dags import StateflowJob, TableMaintenance, failpoint, stateflow_dags

job = StateflowJob(
    name="forms",
    root="/data/jobs/forms",
    tables=TableMaintenance(),
    params={"day": Param("today", type="string")},
    run_params={"failpoint": failpoint("batch.reported:3", "kills.")},
    run={"from_savepoint": "/data/saved"},
)
globals().update({dag.dag_id: dag for dag in stateflow_dags(job, "/jobs/job.py")})
"""
PAGES = json.loads((REPOSITORY / "ui" / "src" / "test-requests.json").read_text())
"""Requests of the pages; the tests of the pages compare them with what the pages send."""
FOLDED = {
    "_savepoint": {"format", "origin"},
    "_retention": {"dispose"},
    "_recovery": {
        *("keep_tables", "drop", "new_names", "source_positions", "claim_mode", "from_other_job"),
        "expected_plan",
    },
}
"""The params of each DAG in sections of the form that are folded at first."""


def family(**options: Any) -> dict[str, DAG]:
    job = StateflowJob(name="forms", root="/data/jobs/forms", **options)
    made = stateflow_dags(job=job, application="/jobs/job.py", retention=Retention(checkpoints=5))
    return {dag.dag_id.removeprefix("forms"): dag for dag in made}


PARAMS: Mapping[str, Mapping[str, Param]] = {
    suffix: {name: dag.params.get_param(name) for name in dag.params}
    for suffix, dag in family(tables=TableMaintenance(), run={"from_savepoint": "/data/saved"}).items()
}
"""The params of the DAGs of a job, by suffix of the DAG's id."""


def accepts(param: Param, value: object) -> bool:
    try:
        Param(value, schema=param.schema).resolve()
    except ParamValidationError:
        return False
    return True


def fulfils(check: Callable[[], object], error: type[Exception] = StateflowError) -> bool:
    try:
        check()
    except error:
        return False
    return True


# -- what a form shows ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", PARAMS)
def test_every_field_has_a_title_and_a_description_and_the_seldom_ones_are_folded(suffix: str) -> None:
    for name, param in PARAMS[suffix].items():
        assert param.schema["title"] and param.schema["description_md"].endswith("."), name
        # Airflow's form shows `description_md` only without it.
        assert param.description is None
    folded = {name for name, param in PARAMS[suffix].items() if "section" in param.schema}
    assert folded == FOLDED.get(suffix, set())
    # Airflow's form shows nothing at all if every param has a section; and a folded field cannot be a required one.
    assert folded != PARAMS[suffix].keys()
    order = [name in folded for name in PARAMS[suffix]]
    assert order == sorted(order)


def test_the_fields_that_matter_come_first() -> None:
    first = {suffix: next(iter(params)) for suffix, params in PARAMS.items()}
    assert first == {"": "claim_mode", "_savepoint": "name", "_retention": "preview", "_recovery": "target"}
    own = {"day": Param("today", type="string")}
    made = family(params=own, run_params={"failpoint": failpoint("batch.reported:3", "kills.")})
    assert list(made[""].params) == ["day", "failpoint", "drain"]
    assert list(made["_recovery"].params)[:5] == ["target", "reason", "sinks", "run", "day"]


def test_a_param_of_the_dag_file_replaces_one_of_the_form() -> None:
    made = family(params={"drain": Param(True, type="boolean"), "expected_plan": Param("a", type="string")})
    assert made[""].params["drain"] is True and made["_recovery"].params["expected_plan"] == "a"


READ: list[str] = []
sys.addaudithook(lambda event, args: READ.append(f"{args}") if event in ("open", "os.listdir", "os.scandir") else None)


def test_a_form_has_no_options_of_the_job_and_making_it_reads_nothing_of_the_job(tmp_path: Path) -> None:
    job = PagesJob(tmp_path / "job")

    def make() -> list[dict[str, Any]]:
        READ.clear()
        spark = SparkSubmit(options={"principal": "ada", "keytab": "c2VjcmV0"})
        described = StateflowJob(name="forms", root=job.address, tables=TableMaintenance(), spark=spark)
        made = stateflow_dags(job=described, application=str(tmp_path / "job.py"))
        assert not any(str(tmp_path) in each for each in READ)
        return [DagSerialization.to_dict(dag) for dag in made]

    before = make()
    job.grow()
    job.save("early", "a reason")
    assert make() == before
    # Nor options of spark-submit: a keytab is one of them.
    assert "c2VjcmV0" not in json.dumps(before)


def test_the_guide_has_every_field_in_the_order_of_the_forms() -> None:
    text = (REPOSITORY / "docs" / "guides" / "run-from-airflow.md").read_text()
    found = re.findall(r"^\| \*([^|]+)\* \| `(\w+)` \| `my_flights(\w*)` \|", text, re.MULTILINE)
    assert found == [(p.schema["title"], name, suffix) for suffix, ps in PARAMS.items() for name, p in ps.items()]
    expected = PARAMS["_savepoint"]["name"].schema["else"]["const"]
    assert f"\nInvalid input for param name: {expected!r} was expected\n" in text


# -- the same as the library ------------------------------------------------------------------------------------------


BLANK = st.text(" \t\n\r\u00a0\u2028\x1c", max_size=3)
NASTY = st.text(st.sampled_from("aZ09._-:=,/ \n\t\"'{}[]~+@\x00\u200b\u2028é\ud800"), max_size=20)
TEXTS = st.one_of(NASTY, st.text(max_size=20))


def around(texts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.builds(lambda before, text, after: f"{before}{text}{after}", BLANK, texts, BLANK)


def matching(rule: str) -> st.SearchStrategy[str]:
    """Texts that a rule describes roughly, to be changed in one place."""
    return st.from_regex(rule, fullmatch=True)


@given(around(st.one_of(TEXTS, matching(r"[A-Za-z0-9._-]{0,3}"), matching(r"[a-z]{99,101}"))))
@example("latest")
@example("007")
@example("x" * 101)
@example("-a")
def test_a_name_of_a_savepoint_is_one_that_the_library_accepts(text: str) -> None:
    given_name = text.strip()
    # A task takes None, as a template gives it, for no name.
    valid = not given_name or (given_name != "None" and fulfils(lambda: check_savepoint_name(given_name)))
    assert accepts(PARAMS["_savepoint"]["name"], text) is valid


@given(around(TEXTS))
@example("None")
@example("\u200b\ufeff")
@example("\U000e0001")
@example("\ud800")
def test_a_reason_is_a_text_that_a_reader_sees(text: str) -> None:
    encodes = fulfils(text.encode, UnicodeEncodeError)
    visible = encodes and bool(escape(text).strip()) and text.strip() != "None"
    assert accepts(PARAMS["_recovery"]["reason"], text) is visible
    assert accepts(PARAMS["_savepoint"]["reason"], text) is encodes


_CLOCK = r"[0-2][0-9](:[0-6][0-9](:[0-6][0-9]([.,][0-9]{1,7})?)?)?"
TIMES = st.one_of(
    matching(rf"[0-9]{{4}}-[01][0-9]-[0-3][0-9]([T ]{_CLOCK}(Z|[+-][0-2][0-9](:?[0-5][0-9])?)?)?"),
    matching(r"[0-9]{8}(T[0-2][0-9]([0-6][0-9]([0-6][0-9])?)?)?"),
    matching(r"[0-9]{4}-?W[0-5][0-9](-?[0-8])?(T[0-2][0-9])?"),
    st.datetimes().map(datetime.isoformat),
    NASTY,
)


@given(TIMES)
@example("0000-01-01")
@example("2026-01-31t03")
@example("2026-01-31T24:00")
def test_a_time_in_a_target_is_one_that_the_library_accepts(text: str) -> None:
    assume(not any(each in text for each in "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029\ud800") and text == text.strip())
    valid, accepted = fulfils(lambda: parse_timestamp(text), ValueError), accepts(target(), f"before:{text}")
    # An offset of a source is no time.
    if "=" not in text and valid is not accepted:
        # The days of a month and the weeks of a year are not in the form; other Pythons may accept more.
        assert accepted and (text[8:10] in ("29", "30", "31") or text[6:8] in ("29", "30", "31") or "W53" in text)


def target() -> Param:
    return PARAMS["_recovery"]["target"]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> PagesJob:
    job = PagesJob(tmp_path_factory.mktemp("forms") / "job")
    job.grow()
    job.save("early", "before the upgrade")
    job.grow()
    return job


OFFSETS = st.sampled_from(
    ["1", "-0.5e3", " 7", "[1]", '{"a": [1]}', "[1", "x", "", "1 2", "true", "null", '"a"', "NaN"]
)


def is_other_scalar(offset: str) -> bool:
    """Whether a text is JSON, but neither a number nor an object nor an array, so that no offset is before it."""
    try:
        value = json.loads(offset)
    except ValueError:
        return False
    return value is None or isinstance(value, str | bool) or value != value


@given(data=st.data())
def test_no_target_that_the_library_resolves_is_refused(job: PagesJob, data: st.DataObject) -> None:
    head = job.root.head()
    folders = job.storage.folders("savepoints/")
    known = ["latest", "early", *map(str, job.checkpoints), *folders, f"{job.address}/savepoints/{folders[0]}"]
    known += [f"file://{job.address}/savepoints/{folders[0]}/", "before:2100-01-01", "before:2100-01-01T00:00+01:00"]
    conditions = st.one_of(TEXTS, OFFSETS.map(lambda offset: f"rows={offset}")).map(lambda text: f"before:{text}")
    text = data.draw(around(st.one_of(st.sampled_from(known), TEXTS, conditions))).strip()
    # A path that is relative to the worker's folder.
    assume("/" not in text or text.startswith(("/", "~", "file:", "before:")))
    resolved = fulfils(lambda: resolve_target(job.root, head, text), Exception)
    assert not resolved or accepts(target(), text) or is_other_scalar(text.partition("=")[2])
    assert resolved or text not in known


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "None", "before:", "before:yesterday", "before:3am", "before:2026-13-01", "before:2026-01-31T25:00"),
        *(
            "before:flights=",
            "before:flights=x",
            "before:=7",
            "before:a b=7",
            "my savepoint",
            "savepoints/early",
            "a/b",
        ),
        *("hdfs://host/a", "s3:/bucket", "file://host/a", "checkpoint 17", "17,18", "/a\x00b", "/" + "a" * 4096),
        *("réstore", "https://host/a", "memory://a"),
    ],
)
def test_a_target_that_no_job_has_is_refused(text: str) -> None:
    assert not accepts(target(), text)


@pytest.mark.parametrize("text", ["s3://b/a", "S3://b/a", "gs://b", "az://c/a", "webhdfs://n:9870/a", "~/a", "~ada/a"])
def test_a_target_may_be_a_path_or_an_address(text: str) -> None:
    assert accepts(target(), text)


NAMES = matching(r"[A-Za-z0-9._-]{0,4}")
LISTS = st.lists(st.one_of(NAMES, NASTY), max_size=4).map(",".join)


@given(around(LISTS))
def test_tables_to_keep_are_names_of_sinks(text: str) -> None:
    def is_name(word: str) -> bool:
        return fulfils(lambda: check_name("a sink", word))

    valid = all(map(is_name, to_words(text)))
    assert accepts(PARAMS["_recovery"]["keep_tables"], text) is valid


@given(around(st.lists(st.one_of(NASTY, st.builds(lambda a, b: f"{a}={b}", NAMES, NAMES)), max_size=4).map(",".join)))
def test_new_names_are_of_the_form_that_the_library_reads(text: str) -> None:
    def is_mapping(word: str) -> bool:
        try:
            parse_maps([word], StoredGraph({}), JobGraph(frozenset()))
        except ConfigError as e:
            # It was read, and its names are unknown.
            return "operators" in e.facts
        return True

    words = to_words(text)
    begins = all(each[:1].isascii() and each[:1].isalnum() for word in words for each in word.partition("=")[::2])
    encodes = fulfils(text.encode, UnicodeEncodeError)
    valid = all(map(is_mapping, words)) and begins and encodes
    assert accepts(PARAMS["_recovery"]["new_names"], text) is valid


class AnySource(dict[str, None]):
    """Sources of which only the description is known, under each name that a source may have."""

    def __contains__(self, uid: object) -> bool:
        return fulfils(lambda: check_name("a source", str(uid)))

    def __missing__(self, uid: str) -> None:
        return None


POSITION = st.one_of(
    st.sampled_from(
        ["keep", "earliest", "latest", "timestamp:2026-01-31T03:00", "timestamp:x", "position:", "[1", "7"]
    ),
    st.sampled_from(['{"a": [1]}', "[]", "position: a b", "{x}", "timestamp:2026-02-30", "position:a\tb", "Keep"]),
    NASTY,
)
LINES = st.lists(st.one_of(NASTY, st.builds(lambda a, b: f"{a} = {b}", NAMES, POSITION)), max_size=3)


@given(
    around(LINES.flatmap(lambda lines: st.sampled_from(["\n", "\r\n", "\n \n", "\u2028"]).map(lambda e: e.join(lines))))
)
def test_positions_of_sources_are_those_that_the_library_reads(text: str) -> None:
    lines = to_lines(text)
    uids = [line.partition("=")[0].strip() for line in lines]
    # What only a parser tells: JSON, the calendar, two positions of one source.
    assume(len(uids) == len(set(uids)) and "{x}" not in text and "02-30" not in text)
    assume(
        not any(line.partition("=")[2].strip()[:1] in "{[" for line in lines if "a" not in line and "[]" not in line)
    )
    at = datetime(2026, 1, 31, tzinfo=UTC)
    valid = fulfils(lambda: choose_starts(lines, AnySource(), None, at))  # type: ignore[arg-type]
    assert accepts(PARAMS["_recovery"]["source_positions"], text) is valid


@pytest.fixture(scope="module")
def plan(job: PagesJob) -> RestorePlan:
    return plan_restore(job, job.build, target="early")


@given(data=st.data())
def test_an_expected_plan_is_one_that_the_pages_make(plan: RestorePlan, data: st.DataObject) -> None:
    whole = expected_plan_of(plan)
    parts = st.lists(st.sampled_from([*whole.split(","), "claim=0", "other=0123456789ab", "", "a"]), max_size=9)
    text = data.draw(around(st.one_of(st.just(whole), parts.map(",".join), NASTY)))
    valid = not text.strip() or fulfils(lambda: differing_parts(plan, text.strip()))
    assert accepts(PARAMS["_recovery"]["expected_plan"], text) is valid
    assert accepts(PARAMS["_recovery"]["expected_plan"], ",".join(f"{each.name.lower()}={0:012}" for each in PlanPart))


FAILPOINT = failpoint("batch.reported:3", "kills.")


@given(
    around(
        st.one_of(
            matching(r"(batch[.]reported|batch.begin|run[.]end|batchxbegin)(:[0-9]{0,2}(:(kill|stop|no))?)?"), NASTY
        )
    )
)
def test_a_failpoint_of_the_form_is_one_of_the_library(text: str) -> None:
    valid = not text.strip() or fulfils(lambda: failpoints.check(text.strip()))
    # The form has the steps of a batch only.
    assert accepts(FAILPOINT, text) is (valid and "run.end" not in text)


@given(st.one_of(st.integers(), st.floats(), st.booleans(), st.none(), st.sampled_from([1.0, 5.0, 1e300, 0.0, 1.5])))
def test_a_number_to_keep_is_one_that_the_tasks_accept(value: object) -> None:
    # A template renders it to text; JSON takes 5.0 for an integer.
    valid = not isinstance(value, bool) and fulfils(
        lambda: to_count("retain", str(value), "checkpoints"), PermanentFailure
    )
    assert accepts(PARAMS["_retention"]["retain"], value) is valid
    assert not valid or value is None or to_count("retain", str(value), "checkpoints") == value


AGES = st.builds(
    lambda number, unit: f"{number}{unit}",
    matching(r"[0-9]{0,7}[.]?[0-9]{0,3}"),
    st.sampled_from(["", "s", " sec", "m", "mins", "H", "hours", "d", " days", "w", "ms", "month"]),
)


@given(around(st.one_of(AGES, NASTY)))
@example("0d")
@example("0.001s")
@example("999999999d")
@example("5\u00a0d")
@example("5d\u2028")
@example("5\u017f")
def test_an_age_of_savepoints_is_one_that_the_tasks_accept(text: str) -> None:
    found = accepts(PARAMS["_retention"]["max_age"], text)
    # The form takes fewer: no milliseconds, and at most nine digits.
    assert not found or not text.strip() or SavepointRule(max_age=to_duration("max_age", text)).max_age


@pytest.mark.parametrize(
    "age",
    [
        None,
        timedelta(days=30),
        timedelta(hours=36),
        timedelta(minutes=90, seconds=1.5),
        timedelta(days=14, microseconds=1),
    ],
)
def test_the_form_has_the_age_of_the_configuration(age: timedelta | None) -> None:
    param = retention_params(Retention(max_age=age), None)["max_age"]
    assert to_duration("max_age", param.resolve()) == age


def test_a_page_reads_the_defaults_of_the_form() -> None:
    """As Airflow's API answers with the details of a DAG."""
    dag = DagSerialization.from_dict(DagSerialization.to_dict(family()["_retention"]))
    answer = DAGDetailsResponse.get_params(dag.params)
    assert answer is not None
    assert {name: answer[name]["value"] for name in ("retain", "savepoints", "max_age")} == {
        "retain": 5,
        "savepoints": 7,
        "max_age": None,
    }


def test_a_text_that_is_no_number_to_keep_is_refused() -> None:
    for text in ("1" * 310, "1" * 5000, "1_0", "+5", " 5", "5.", "1e3", "9e+999", "1.25e+01", "0e+10", "0.0", "٣"):
        with fails(PermanentFailure, "config"):
            to_count("retain", text, "checkpoints")
    assert to_count("retain", "1" * 309, "checkpoints") == int("1" * 309)
    assert [to_count("retain", text, "checkpoints") for text in ("10", "007", "5.0", "1e+16")] == [10, 7, 5, 10**16]


def test_the_form_does_not_replace_a_number_that_is_too_small() -> None:
    """Airflow's form replaces a number below `minimum` by the minimum, which keeps the least."""
    for name in ("retain", "savepoints"):
        assert not {"minimum", "maximum"} & PARAMS["_retention"][name].schema.keys()


def test_a_long_wrong_text_is_refused_soon() -> None:
    """A pattern that can read a text in many ways would keep the API server busy for hours."""
    n = 60_000
    wrong = [
        " " * n + "é\ud800",
        "a " * n + "\ud800",
        "/" + " " * n + "\x00",
        "[" + "] " * n,
        "{a" * n,
        "a=" * n + "\n=",
    ]
    wrong += [
        "a=keep \n" * (n // 10) + "=",
        "a={" + "} " * n + "\n=",
        "target=" * n,
        "1" * n + " !",
        "before:a=" + " " * n + "x",
    ]
    for name, param in ((name, param) for params in PARAMS.values() for name, param in params.items()):
        for text in wrong:
            begun = time.thread_time()
            accepts(param, text)
            # Some hundredths of a second at most; with quadratic time, nine seconds.
            assert time.thread_time() - begun < 3, (name, text[:20])


# -- before a DAG run exists ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    folder = tmp_path_factory.mktemp("forms")
    with pages_airflow.airflow_of(folder):
        pages_airflow.store_dags(folder / "dags", {"forms": FAMILY})
        yield Api()


def trigger(api: Api, suffix: str, conf: Mapping[str, object]) -> tuple[int, Any]:
    answer = api.client("uma").post(f"/api/v2/dags/forms{suffix}/dagRuns", json={"logical_date": None, "conf": conf})
    return answer.status_code, answer.json()


def runs(api: Api, suffix: str) -> int:
    return int(api.client("uma").get(f"/api/v2/dags/forms{suffix}/dagRuns").json()["total_entries"])


GOOD: dict[str, object] = {"target": "17", "reason": "version 2 counts twice"}
WRONG: list[tuple[str, str, object]] = [
    ("", "failpoint", "batch.unknown:3"),
    ("", "failpoint", "batch.reported 3"),
    ("", "claim_mode", "mine"),
    ("", "drain", "yes"),
    ("_savepoint", "name", "before v2"),
    ("_savepoint", "name", "latest"),
    ("_savepoint", "name", "42"),
    ("_savepoint", "name", "../../flights"),
    ("_savepoint", "name", "x" * 101),
    ("_savepoint", "name", 7),
    ("_savepoint", "origin", "periodic"),
    ("_savepoint", "format", "avro"),
    ("_savepoint", "stop", "true"),
    ("_savepoint", "reason", ["a"]),
    ("_retention", "retain", 0),
    ("_retention", "retain", -1),
    ("_retention", "retain", 2.5),
    ("_retention", "savepoints", 0),
    ("_retention", "savepoints", "7"),
    ("_retention", "max_age", "30"),
    ("_retention", "max_age", 30),
    ("_retention", "preview", None),
    ("_retention", "tables", 1),
    ("_retention", "dispose", "savepoints/before-v2"),
    ("_retention", "dispose", 42),
    ("_recovery", "target", ""),
    ("_recovery", "target", " \u200b"),
    ("_recovery", "target", None),
    ("_recovery", "target", 17),
    ("_recovery", "target", "before:yesterday"),
    ("_recovery", "target", "before:2026-31-01"),
    ("_recovery", "target", "before:flights=noon"),
    ("_recovery", "target", "savepoints/before-v2"),
    ("_recovery", "reason", ""),
    ("_recovery", "reason", " \n\u200b"),
    ("_recovery", "reason", None),
    ("_recovery", "sinks", "drop"),
    ("_recovery", "keep_tables", "a/b"),
    ("_recovery", "keep_tables", "totals=late"),
    ("_recovery", "drop", "@timers"),
    ("_recovery", "new_names", "sums"),
    ("_recovery", "new_names", "sums=>totals"),
    ("_recovery", "new_names", "sums = totals"),
    ("_recovery", "source_positions", "flights"),
    ("_recovery", "source_positions", "flights=yesterday"),
    ("_recovery", "source_positions", "flights=keep, aircraft=latest"),
    ("_recovery", "source_positions", "flights=timestamp:31.01.2026"),
    ("_recovery", "claim_mode", "yes"),
    ("_recovery", "from_other_job", "no"),
    ("_recovery", "run", 1),
    ("_recovery", "expected_plan", "as before"),
]


@pytest.mark.matrix
@pytest.mark.parametrize(("suffix", "name", "value"), WRONG)
def test_airflow_refuses_a_wrong_value_and_makes_no_dag_run(api: Api, suffix: str, name: str, value: object) -> None:
    status, answer = trigger(api, suffix, {**(GOOD if suffix == "_recovery" else {}), name: value})
    assert status == 400 and f"param {name}:" in answer["detail"]
    assert runs(api, suffix) == 0
    first, schema = answer["detail"].partition("\n")[0], PARAMS[suffix].get(name, FAILPOINT).schema
    if (rule := schema.get("if")) and isinstance(value, str if "pattern" in rule else int):
        # In words, before the schema.
        assert first.endswith(f"{schema['else']['const']!r} was expected")
    else:
        assert " is not of type " in first or " is not one of " in first


@pytest.mark.parametrize("missing", GOOD)
def test_airflow_refuses_a_recovery_without_a_target_or_a_reason(api: Api, missing: str) -> None:
    status, answer = trigger(api, "_recovery", {name: value for name, value in GOOD.items() if name != missing})
    assert status == 400 and f"param {missing}:" in answer["detail"]


RIGHT: list[tuple[str, dict[str, object]]] = [
    ("", {}),
    ("", {"failpoint": "batch.reported:3", "drain": True, "claim_mode": "claim"}),
    ("_savepoint", {"name": None, "reason": None, "stop": False}),
    ("_savepoint", {"name": "before-v2", "reason": "", "stop": True, "drain": True, "format": "native"}),
    ("_savepoint", {"name": " "}),
    ("_retention", {"retain": None, "savepoints": 1, "preview": True}),
    ("_retention", {"retain": 5.0}),
    ("_retention", {"dispose": " "}),
    ("_retention", {"max_age": " 1.5 D "}),
    *(("_retention", conf) for conf in PAGES["confs"].values()),
    ("_retention", {"dispose": "before-v2", "reason": "the upgrade is done"}),
    ("_recovery", GOOD),
    (
        "_recovery",
        {
            **GOOD,
            "keep_tables": "totals, late",
            "drop": "sessions totals.sum windows:@timers",
            "new_names": "sums=totals,trips.n=legs.n\n",
            "source_positions": 'flights=earliest\r\n\r\naircraft = {"0": 7}\nlegs=timestamp:2026-01-31T03:00Z\n',
            "from_other_job": True,
            "claim_mode": "claim",
            "expected_plan": "",
            "run": True,
        },
    ),
]


@pytest.mark.parametrize(("suffix", "conf"), RIGHT)
def test_airflow_accepts_right_values(api: Api, suffix: str, conf: dict[str, object]) -> None:
    before = runs(api, suffix)
    status, answer = trigger(api, suffix, conf)
    assert status == 200, answer
    assert runs(api, suffix) == before + 1
    assert api.client("ada").delete(f"/api/v2/dags/forms{suffix}/dagRuns/{answer['dag_run_id']}").status_code == 204
