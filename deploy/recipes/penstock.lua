-- Checks a request with Penstock. The client gets a denial of Penstock unchanged.
local url = "http://127.0.0.1:8181/auth/forward"

-- Penstock does not get these headers. They describe the connection, or the body, which is not
-- sent; or they are names of other proxies for the request.
local dropped = { "host", "connection", "keep-alive", "te", "upgrade", "expect", "content-length",
  "transfer-encoding", "x-original-method", "x-original-uri", "x-original-url" }

core.register_action("penstock", { "http-req" }, function(txn)
  local headers = txn.http:req_get_headers()
  local host = headers["host"] and headers["host"][0] or ""
  for _, name in ipairs(dropped) do headers[name] = nil end
  headers["x-forwarded-method"] = { txn.f:method() }
  headers["x-forwarded-uri"] = { txn.f:pathq() }
  headers["x-forwarded-host"] = { host }
  headers["x-forwarded-for"] = { txn.f:src() }

  local answer = core.httpclient():get{ url = url, headers = headers, timeout = 5000 }
  -- If it cannot connect, HAProxy makes a 5xx response itself. A 5xx of Penstock has Retry-After.
  if not answer or not answer.status or answer.status == 0 or answer.status >= 500 and not answer.headers["retry-after"] then
    txn:set_var("txn.penstock_down", true)
    return
  end
  for _, name in ipairs({ "connection", "content-length", "transfer-encoding" }) do answer.headers[name] = nil end
  if answer.status ~= 200 then
    txn:done(txn:reply{ status = answer.status, headers = answer.headers, body = answer.body })
  end
  local limits, policy = answer.headers["ratelimit"], answer.headers["ratelimit-policy"]
  if limits then txn:set_var("txn.ratelimit", limits[0]) end
  if policy then txn:set_var("txn.ratelimit_policy", policy[0]) end
end)
