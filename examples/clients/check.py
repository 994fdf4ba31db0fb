#!/usr/bin/env python3
"""Gets a decision from Penstock: check.py http://localhost:8090 TOKEN user:42"""
import json, sys, time, urllib.error, urllib.request, uuid

def check(url, token, key):
    body = {"rule": "api", "key": key, "request_id": str(uuid.uuid4())}  # with the id, the second try is free if the first was charged
    headers = {"Content-Type": "application/json", "Authorization": "Bearer " + token}
    for _ in range(2):
        pause = 0.1
        try:
            request = urllib.request.Request(url + "/v1/check", json.dumps(body).encode(), headers)
            return json.load(urllib.request.urlopen(request, timeout=1))
        except urllib.error.HTTPError as e:
            if e.code not in (429, 503):  # 429: a proxy limits the calls of this program; 503: no decision; others: our own mistake
                raise SystemExit(e.read().decode())
            pause = min(float(e.headers.get("Retry-After", pause)), 1)
        except OSError:  # the service does not respond
            pass
        time.sleep(pause)
    return None

decision = check(*sys.argv[1:4])
if decision is None:
    print("undecided: this program goes on")
elif decision["allowed"]:
    print("allowed,", decision["limits"][0]["remaining"], "left")
elif decision["retry_after_ms"] < 0:
    print("denied, do not retry")
else:
    print("denied, retry after", decision["retry_after_ms"] / 1000, "s")
