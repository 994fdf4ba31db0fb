-- Asks Penstock whether a request may pass. A denial is sent to the client as it is.
local url = "http://127.0.0.1:8181/auth/forward"

-- These headers belong to the connection, to the body, which is not sent, or to other descriptions.
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
  -- HAProxy answers with a 5xx of its own if it cannot connect. Penstock's have Retry-After.
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
