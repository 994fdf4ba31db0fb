-- Checks a request with Penstock. The client gets a denial of Penstock unchanged.
local url = "http://127.0.0.1:8181/auth/forward"

-- These headers of the client are not sent to Penstock.
local dropped = {
  -- They describe the connection or the body. The body is not sent.
  "host", "connection", "keep-alive", "te", "upgrade", "expect", "content-length", "transfer-encoding",
  -- Other proxies use these names. Penstock rejects requests that have both kinds of names.
  "x-original-method", "x-original-uri", "x-original-url",
}

local timeout_ms = 5000 -- longer than any max_wait of the policy

core.register_action("penstock", { "http-req" }, function(txn)
  local headers = txn.http:req_get_headers()
  local host = headers["host"] and headers["host"][0] or ""
  for _, name in ipairs(dropped) do headers[name] = nil end
  headers["x-forwarded-method"] = { txn.f:method() }
  headers["x-forwarded-uri"] = { txn.f:pathq() }
  headers["x-forwarded-host"] = { host }
  headers["x-forwarded-for"] = { txn.f:src() }

  local response = core.httpclient():get{ url = url, headers = headers, timeout = timeout_ms }
  local status = response and response.status or 0
  -- If HAProxy cannot connect, it makes a 5xx response itself. A 5xx of Penstock has Retry-After.
  local is_made_by_haproxy = status >= 500 and not response.headers["retry-after"]
  if status == 0 or is_made_by_haproxy then
    txn:set_var("txn.penstock_down", true)
    return
  end
  -- HAProxy sets these headers itself.
  for _, name in ipairs({ "connection", "content-length", "transfer-encoding" }) do response.headers[name] = nil end
  if status ~= 200 then
    txn:done(txn:reply{ status = status, headers = response.headers, body = response.body })
  end
  local ratelimit, ratelimit_policy = response.headers["ratelimit"], response.headers["ratelimit-policy"]
  if ratelimit then txn:set_var("txn.ratelimit", ratelimit[0]) end
  if ratelimit_policy then txn:set_var("txn.ratelimit_policy", ratelimit_policy[0]) end
end)
