"""A client of `sluicegate serve` in Python, without dependencies: python3 client.py [URL]

It calls a model within limits: an estimate before the call, the actual use after it.
"""

import json
import math
import os
import sys
import time
import urllib.error
import urllib.request
import uuid


class Refused(Exception):
    """A limit is short. `retry_after` is in seconds; None: waiting does not help."""

    def __init__(self, problem, retry_after):
        super().__init__(problem.get("detail", "refused"))
        self.limits = problem.get("violated-policies", [])
        self.retry_after = retry_after


class Sluicegate:
    def __init__(self, url="http://127.0.0.1:8470", token=None, timeout=5.0):
        self.url, self.timeout = url.rstrip("/"), timeout
        self.headers = {"content-type": "application/json"}
        if token:
            self.headers["authorization"] = f"Bearer {token}"

    def acquire(self, entity, resource, amounts, **more):
        """Takes all amounts or none; raises Refused. `more`: limits, parent, wait_ms."""
        body = {"entity": entity, "resource": resource, "amounts": amounts, **more}
        return self._post("/v1/acquire", body)

    def adjust(self, permit, to):
        """Corrects a permit to the amounts that were used, once however often it is sent."""
        path = f"/v1/permits/{permit['permit']}/adjust"
        return self._post(path, {"to": to}, key=str(uuid.uuid4()), tries=5)

    def release(self, permit):
        """Gives everything back, once however often it is sent."""
        return self._post(f"/v1/permits/{permit['permit']}/release", None, tries=5)

    def _post(self, path, body, key=None, tries=1):
        data = json.dumps(body).encode() if body is not None else b""
        headers = dict(self.headers, **({"idempotency-key": key} if key else {}))
        for attempt in range(1, tries + 1):
            request = urllib.request.Request(self.url + path, data, headers, method="POST")
            try:
                with urllib.request.urlopen(request, timeout=self.timeout) as answer:
                    return json.load(answer)
            except urllib.error.HTTPError as error:
                problem = json.loads(error.read() or b"{}")
                retry_after = error.headers.get("retry-after")
                if error.code == 429:
                    raise Refused(problem, retry_after and int(retry_after)) from None
                if error.code != 503 or attempt == tries:
                    raise RuntimeError(f"{error.code}: {problem.get('detail')}") from None
            except OSError:
                if attempt == tries:
                    raise
            time.sleep(0.1 * 2**attempt)


def main():
    url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8470"
    gate = Sluicegate(url, os.environ.get("SLUICEGATE_TOKEN"))
    limits = ["rpm=2/h", "tpm=10000/h"]
    for question in ["one", "two", "three"]:
        try:
            permit = gate.acquire("user-py", "gpt-4", {"rpm": 1, "tpm": 500}, limits=limits)
        except Refused as refused:
            print(f"{question}: refused by {', '.join(refused.limits)}")
            continue
        used = 120  # the model's answer says how many tokens it took
        gate.adjust(permit, {"tpm": used})
        left = {limit["limit"]: limit["available"] for limit in permit["limits"]}
        whole = math.floor(left["rpm"])  # limits refill by fractions of a token
        print(f"{question}: granted, requests left {whole}, corrected to {used} tokens")
    return 0


if __name__ == "__main__":
    sys.exit(main())
