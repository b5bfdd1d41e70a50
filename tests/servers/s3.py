"""An S3 server in a folder: localbucket with multi-object delete; ``python -m tests.servers.s3 FOLDER PORT DELAY_MS``.

It waits for the delay before it reads each request.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import localbucket


@dataclass
class Request:
    """A request that the server has received.

    Attributes:
        method: such as ``GET``.
        target: path and query, decoded.
        keys: the keys that the answer lists, or that the request deletes.
    """

    method: str
    target: str
    keys: list[str] = field(default_factory=list)

    def is_about(self, folder: str) -> bool:
        """Returns whether it names something in a folder, or its answer does."""
        return any(f"{folder}/" in f"{name}/" for name in (self.target.partition("&start-after=")[0], *self.keys))


class Handler(localbucket.S3Handler):
    """Also deletes several objects in one call."""

    protocol_version = "HTTP/1.1"
    # A response is several writes: without this, each waits 40 ms until the client has acknowledged the one before.
    disable_nagle_algorithm = True
    delay_seconds = 0.0
    received: list[Request] | None = None
    """Where requests are noted; None to note none."""
    request_now: Request

    def parse_request(self) -> bool:
        time.sleep(self.delay_seconds)
        if not super().parse_request():
            return False
        self.request_now = Request(self.command, unquote(self.path))
        if self.received is not None:
            self.received.append(self.request_now)
        return True

    def log_message(self, *_: object) -> None:
        """Logs nothing."""

    def _list_entries(
        self, bucket_dir: Path, prefix: str, delimiter: str, marker: str, marker_is_prefix: bool, max_keys: int
    ) -> tuple[list[tuple[str, Path]], list[str], bool, str]:
        """Looks only into the folder of the prefix: other objects of the bucket do not slow a list down."""
        base = prefix[: prefix.rfind("/") + 1]
        if not marker.startswith(base):
            if marker > base:
                return [], [], False, ""
            marker = base
        contents, prefixes, is_truncated, last = super()._list_entries(
            bucket_dir / base, prefix[len(base) :], delimiter, marker[len(base) :], marker_is_prefix, max_keys
        )
        found = [(base + key, path) for key, path in contents]
        self.request_now.keys += [key for key, _ in found]
        return found, [base + each for each in prefixes], is_truncated, last[:2] + base + last[2:]

    def _post_request(self, bucket: str, key: str) -> None:
        if key or "delete" not in self.query:
            super()._post_request(bucket, key)
            return
        answer = ET.Element("DeleteResult", xmlns=localbucket.S3_NAMESPACE)
        for element in ET.fromstring(self._read_body()).iter():
            if element.tag.endswith("}Key") or element.tag == "Key":
                path = self._object_path(bucket, element.text or "")
                self.request_now.keys.append(element.text or "")
                # Empty folders stay: another request may be about to write into one.
                if path.is_file():
                    path.unlink(missing_ok=True)
                ET.SubElement(ET.SubElement(answer, "Deleted"), "Key").text = element.text
        self._send_xml(answer)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


@contextlib.contextmanager
def noted_requests(folder: Path, delay_ms: int = 0) -> Iterator[tuple[str, list[Request]]]:
    """Serves the buckets of a folder from a thread; yields the endpoint, and the list of received requests."""
    received: list[Request] = []
    facts = {"data_root": folder.resolve(), "delay_seconds": delay_ms / 1000, "received": received}
    with Server(("127.0.0.1", 0), type("NotingHandler", (Handler,), facts)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", received
        finally:
            server.shutdown()
            thread.join()


if __name__ == "__main__":
    folder, port, delay_ms = sys.argv[1:]
    Handler.data_root = Path(folder).resolve()
    Handler.delay_seconds = int(delay_ms) / 1000
    Server(("127.0.0.1", int(port)), Handler).serve_forever()
