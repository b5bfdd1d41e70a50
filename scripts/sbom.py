"""Writes a software bill of materials in CycloneDX's JSON: all that ``make setup`` has installed, with its hashes.

It lists the Python packages of ``.venv``, of a test server and of Node in it, the JARs of ``fetch_jars.py``, those that
are part of PySpark, and the npm packages of the test servers. Packages of the operating system are not in it: the
system's package manager lists them.

    python scripts/sbom.py [--into FILE]
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import Distribution, distributions, version
from pathlib import Path

from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, XsUri
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from fetch_jars import PACKAGES
from packageurl import PackageURL
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
LOCKS = (
    *("requirements-build.txt", "requirements.txt", "requirements-dev.txt", "requirements-node.txt"),
    "tests/servers/moto.txt",
)
_PIN = re.compile(r"^([\w.-]+)==([^\s;]+)[^\n]*\\\n((?:    --hash=\S+(?: \\)?\n)+)", re.MULTILINE)


def locked_hashes(texts: Iterable[str]) -> dict[tuple[str, str], frozenset[str]]:
    """Returns the SHA-256 of the archives of each package, by its name and version, from files of requirements."""
    return {
        (canonicalize_name(name), number): frozenset(re.findall(r"--hash=sha256:([0-9a-f]+)", hashes))
        for text in texts
        for name, number, hashes in _PIN.findall(text)
    }


def python_package(found: Distribution, locked: Mapping[tuple[str, str], frozenset[str]]) -> Component:
    """Returns the component of an installed package; it has no hashes if the package is not pinned."""
    name = canonicalize_name(found.name)
    purl = PackageURL("pypi", name=name, version=found.version)
    # Which of the archives was installed depends on the machine, and the installation does not record it.
    archives = [HashType(alg=HashAlgorithm.SHA_256, content=each) for each in locked.get((name, found.version), ())]
    reference = ExternalReference(
        type=ExternalReferenceType.DISTRIBUTION, url=XsUri(str(purl)), hashes=archives, comment="one of these archives"
    )
    return Component(
        name=name,
        version=found.version,
        purl=purl,
        bom_ref=str(purl),
        external_references=[reference] if archives else [],
    )


def jar(path: Path) -> Component:
    """Returns the component of a JAR that Ivy has downloaded: ``GROUP_ARTIFACT-VERSION.jar``."""
    group, _, artifact = path.stem.partition("_")
    name, _, number = artifact.rpartition("-")
    purl = PackageURL("maven", group, name, number)
    return Component(name=name, group=group, version=number, purl=purl, bom_ref=str(purl), hashes=[_sha256(path)])


def jar_of_spark(path: Path) -> Component:
    """Returns the component of a JAR in PySpark, whose name has no group."""
    return Component(
        type=ComponentType.FILE, name=path.name, bom_ref=f"pyspark/jars/{path.name}", hashes=[_sha256(path)]
    )


def npm_packages(locks: Iterable[Path]) -> Iterator[Component]:
    """Yields the components of lock files of npm; what two of them have is one component."""
    seen = set()
    for folder, facts in (each for lock in locks for each in json.loads(lock.read_text())["packages"].items()):
        if not folder:  # the project itself
            continue
        # A name with a scope is "@scope/name".
        scope, _, name = folder.rpartition("node_modules/")[2].rpartition("/")
        purl = PackageURL("npm", scope or None, name, facts.get("version"))
        if purl in seen:
            continue
        seen.add(purl)
        algorithm, _, digest = facts["integrity"].partition("-")
        assert algorithm == "sha512", facts
        content = base64.b64decode(digest).hex()
        yield Component(
            name=name,
            group=scope or None,
            version=facts["version"],
            purl=purl,
            bom_ref=str(purl),
            hashes=[HashType(alg=HashAlgorithm.SHA_512, content=content)],
        )


def installed(venv: Path) -> Iterator[Component]:
    """Yields all components of an environment, its own project excluded."""
    locked = locked_hashes((ROOT / name).read_text() for name in LOCKS)
    folders = [str(path) for path in [*venv.glob("lib/python*/site-packages"), venv / "moto", venv / "nodejs"]]
    for found in _unique(distributions(path=folders)):
        if found.name != "stateflow":
            yield python_package(found, locked)
    jars = (path for _, folder in PACKAGES.values() for path in (venv / folder).glob("*.jar"))
    for path in sorted({path.name: path for path in jars}.values()):
        yield jar(path)
    for path in sorted(venv.glob("lib/python*/site-packages/pyspark/jars/*.jar")):
        yield jar_of_spark(path)
    # npm's own lists of what it has installed.
    locks = (folder / "node_modules" / ".package-lock.json" for folder in (venv / "node", ROOT / "ui"))
    yield from npm_packages(lock for lock in locks if lock.exists())


def document(components: Iterable[Component]) -> str:
    """Returns the bill of materials as JSON.

    Raises:
        ValueError: it does not conform to the schema of CycloneDX.
    """
    parts = list(components)
    bom = Bom(components=parts)
    own = Component(type=ComponentType.APPLICATION, name="stateflow", version=version("stateflow"), bom_ref="stateflow")
    bom.metadata.component = own
    bom.register_dependency(own, parts)
    text: str = JsonV1Dot6(bom).output_as_string(indent=1)
    problem = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if problem is not None:
        raise ValueError(f"not a valid CycloneDX document: {problem}")
    return text


def _sha256(path: Path) -> HashType:
    return HashType(alg=HashAlgorithm.SHA_256, content=hashlib.sha256(path.read_bytes()).hexdigest())


def _unique(found: Iterable[Distribution]) -> list[Distribution]:
    by_name = {(canonicalize_name(each.name), each.version): each for each in found}
    return [by_name[key] for key in sorted(by_name)]


def main() -> int:
    """Writes the file; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--into", type=Path, default=ROOT / "build" / "sbom.json", help="file to write")
    given = parser.parse_args()
    components = list(installed(Path(sys.prefix)))
    given.into.parent.mkdir(parents=True, exist_ok=True)
    given.into.write_text(document(components) + "\n")
    print(f"{given.into}: {len(components)} components")
    return 0


if __name__ == "__main__":
    sys.exit(main())
