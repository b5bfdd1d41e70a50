"""A bucket of Google Cloud Storage in memory, as far as its clients here use the API in XML."""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

_PAGE = 1000
_uploads = itertools.count()


class GoogleBucket(BaseHTTPRequestHandler):
    """Creates an object only under the condition that there is none, and sends and lists objects."""

    objects: dict[str, bytes]
    """By path, as the client has encoded it."""
    times: dict[str, float]
    """When objects were created, by path; one that a test has added is as old as the server."""
    began: float
    parts: dict[tuple[str, int], bytes]
    """By number of the upload and of the part."""

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        query = self.path.partition("?")[2]
        if query:
            upload = parse_qs(query)
            self.parts[upload["uploadId"][0], int(upload["partNumber"][0])] = data
            self._answer(200, {"ETag": f'"{hash(data):x}"'})
            return
        if self.headers["x-goog-if-generation-match"] != "0":
            self._answer(400)
        elif self.path in self.objects:
            self._answer(412)
        else:
            self._create(self.path, data)
            self._answer(200, {"ETag": '"1"', "x-goog-generation": "1"})

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if "list-type" in query:
            self._list(parts.path, query)
        elif self.path not in self.objects:
            self._answer(404)
        else:
            self._send(self.objects[self.path], self._time(self.path))

    do_HEAD = do_GET

    def do_POST(self) -> None:
        """Begins an upload in parts, or ends it."""
        self.rfile.read(int(self.headers["Content-Length"] or 0))
        path, _, query = self.path.partition("?")
        upload = parse_qs(query, keep_blank_values=True).get("uploadId", [""])[0]
        if upload:
            self._create(path, b"".join(self.parts[key] for key in sorted(self.parts) if key[0] == upload))
            self._answer(200, body=b'<CompleteMultipartUploadResult><ETag>"1"</ETag></CompleteMultipartUploadResult>')
        else:
            new = f"upload-{next(_uploads)}"
            self._answer(
                200,
                body=f"<InitiateMultipartUploadResult><UploadId>{new}</UploadId>"
                "</InitiateMultipartUploadResult>".encode(),
            )

    def do_DELETE(self) -> None:
        self._answer(404 if self.objects.pop(self.path, None) is None else 204)

    def _create(self, path: str, data: bytes) -> None:
        self.objects[path], self.times[path] = data, time.time()

    def _time(self, path: str) -> float:
        return self.times.get(path, self.began)

    def _send(self, data: bytes, modified: float) -> None:
        headers = {"ETag": f'"{hash(data):x}"', "Last-Modified": formatdate(modified, usegmt=True)}
        asked = self.headers["Range"]
        if asked is None:
            self._answer(200, headers, data)
            return
        begin, end = map(int, asked.removeprefix("bytes=").split("-"))
        part = data[begin : end + 1]
        span = f"bytes {begin}-{begin + len(part) - 1}/{len(data)}"
        self._answer(206, {**headers, "Content-Range": span}, part)

    def _list(self, bucket: str, query: dict[str, str]) -> None:
        keys = {unquote(path).removeprefix(f"{bucket.rstrip('/')}/"): path for path in self.objects}
        after, prefix = query.get("continuation-token") or query.get("start-after", ""), query.get("prefix", "")
        found = sorted(key for key in keys if key.startswith(prefix) and key > after)
        answer = ET.Element("ListBucketResult")
        if query.get("delimiter"):
            folders = {f"{prefix}{key[len(prefix) :].split('/')[0]}/" for key in found if "/" in key[len(prefix) :]}
            found = [key for key in found if "/" not in key[len(prefix) :]]
            for folder in sorted(folders):
                ET.SubElement(ET.SubElement(answer, "CommonPrefixes"), "Prefix").text = folder
        page = found[:_PAGE]
        for key in page:
            data, modified = self.objects[keys[key]], datetime.fromtimestamp(self._time(keys[key]), UTC)
            facts = {
                "Key": key, "Size": str(len(data)), "ETag": f'"{hash(data):x}"',
                "LastModified": f"{modified:%Y-%m-%dT%H:%M:%S.%f}"[:-3] + "Z",
            }  # fmt: skip
            contents = ET.SubElement(answer, "Contents")
            for name, value in facts.items():
                ET.SubElement(contents, name).text = value
        if len(found) > len(page):
            ET.SubElement(answer, "NextContinuationToken").text = page[-1]
        self._answer(200, body=ET.tostring(answer))

    def _answer(self, status: int, headers: dict[str, str] | None = None, body: bytes = b"") -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def google_server(objects: dict[str, bytes]) -> Iterator[dict[str, str]]:
    """Listens on loopback; yields the environment variables of its clients."""
    handler = type("OneBucket", (GoogleBucket,), {"objects": objects, "times": {}, "began": time.time(), "parts": {}})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        account = {
            "gcs_base_url": f"http://127.0.0.1:{server.server_port}", "disable_oauth": True, "client_email": "",
            "private_key": "", "private_key_id": "",
        }  # fmt: skip
        try:
            yield {"GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(account), "GOOGLE_ALLOW_HTTP": "true"}
        finally:
            server.shutdown()
            thread.join()
