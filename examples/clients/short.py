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
print("allowed" if decision["allowed"] else f"denied, retry after {decision['retry_after_ms'] / 1000} s")
