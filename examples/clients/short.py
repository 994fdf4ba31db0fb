#!/usr/bin/env python3
"""Gets a decision from Penstock: short.py http://localhost:8090 TOKEN user:42"""
import json, sys, urllib.request

url, token, key = sys.argv[1:]
body = json.dumps({"rule": "api", "key": key}).encode()
headers = {"Content-Type": "application/json", "Authorization": "Bearer " + token}
try:
    with urllib.request.urlopen(urllib.request.Request(url + "/v1/check", body, headers), timeout=1) as response:
        decision = json.load(response)
except OSError as e:  # after a 400, reject the request; after a 503 or no response, decide here what to do without a decision
    sys.exit(f"undecided: {e}")
retry_ms = decision["retry_after_ms"]  # -1: never
print("allowed" if decision["allowed"] else "denied, do not retry" if retry_ms < 0 else f"denied, retry after {retry_ms / 1000} s")
