"""An S3 server in a folder: localbucket, with the call that it lacks: ``python -m tests.servers.s3 FOLDER PORT``."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from http.server import ThreadingHTTPServer
from pathlib import Path

import localbucket


class Handler(localbucket.S3Handler):
    """Deletes several objects in one call too, as clients do."""

    def log_message(self, *_: object) -> None:
        """Says nothing."""

    def _post_request(self, bucket: str, key: str) -> None:
        if key or "delete" not in self.query:
            super()._post_request(bucket, key)
            return
        asked = ET.fromstring(self._read_body())
        answer = ET.Element("DeleteResult", xmlns=localbucket.S3_NAMESPACE)
        for element in asked.iter():
            if element.tag.endswith("}Key") or element.tag == "Key":
                self._remove(bucket, element.text or "")
                ET.SubElement(ET.SubElement(answer, "Deleted"), "Key").text = element.text
        self._send_xml(answer)

    def _remove(self, bucket: str, key: str) -> None:
        """Leaves empty folders: removing one while another request is about to write into it would fail that one."""
        path = self._object_path(bucket, key)
        if path.is_file():
            path.unlink(missing_ok=True)


class Server(ThreadingHTTPServer):
    """Of which many threads may ask at once."""

    daemon_threads = True
    request_queue_size = 128


def main(folder: str, port: str) -> None:
    """Serves until it is killed."""
    Handler.data_root = Path(folder).resolve()
    Handler.protocol_version = "HTTP/1.1"
    Server(("127.0.0.1", int(port)), Handler).serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
