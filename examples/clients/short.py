#!/usr/bin/env python3
"""Asks Penstock for a decision: short.py http://localhost:8090 TOKEN user:42"""
import json, sys, urllib.request

url, token, key = sys.argv[1:]
question = json.dumps({"rule": "api", "key": key}).encode()
headers = {"Content-Type": "application/json", "Authorization": "Bearer " + token}
try:
    with urllib.request.urlopen(urllib.request.Request(url + "/v1/check", question, headers), timeout=1) as answer:
        decision = json.load(answer)
except OSError as e:  # no answer, or an error such as 429 or 503: what goes on without a decision?
    sys.exit(f"undecided: {e}")
print("allowed" if decision["allowed"] else f"denied, retry after {decision['retry_after_ms'] / 1000} s")
