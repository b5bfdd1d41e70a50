"""Writes the digests of the Docker files' base images into ``docker/images.lock``.

A tag can be moved to another image, a digest cannot. The Docker files name the tags, and take the digests from the lock
file; without it, nothing is built or started. Asking the registry needs ``docker`` with buildx.

    python scripts/image_digests.py
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

DOCKER = Path(__file__).resolve().parent.parent / "docker"
LOCK = "images.lock"
_IMAGE = re.compile(r"^ *(?:FROM|image:) +(\S+)@\$\{(\w+)", re.MULTILINE)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def images(folder: Path) -> dict[str, str]:
    """Returns the images of the Docker files, by the variable with their digest."""
    texts = [(folder / name).read_text() for name in ("Dockerfile", "compose.yaml")]
    return {variable: image for text in texts for image, variable in _IMAGE.findall(text)}


def resolve(image: str) -> str:
    """Returns the digest that the registry has for an image: that of the list of its architectures.

    Raises:
        ValueError: the answer has no digest.
        subprocess.CalledProcessError: docker failed; its message is on standard error.
    """
    command = ["docker", "buildx", "imagetools", "inspect", image, "--format", "{{json .Manifest}}"]
    answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    digest = str(json.loads(answer).get("digest"))
    if not _DIGEST.fullmatch(digest):
        raise ValueError(f"docker returned no digest of {image}: {answer[:200]!r}")
    return digest


def content(digests: Mapping[str, str], names: Mapping[str, str]) -> str:
    """Returns the lock file: one variable for each image, with the image in a comment."""
    lines = [f"# {names[variable]}\n{variable}={digest}\n" for variable, digest in sorted(digests.items())]
    return "# Written by `make image-digests`; commit it.\n" + "".join(lines)


def main() -> int:
    """Writes the lock file; returns the exit code."""
    names = images(DOCKER)
    try:
        text = content({variable: resolve(image) for variable, image in names.items()}, names)
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        print(f"image-digests: {error}\nimage-digests: docker/{LOCK} is unchanged", file=sys.stderr)
        return 1
    (DOCKER / LOCK).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
