-- Checks a request with Penstock. The client gets a denial of Penstock unchanged.
local address = "127.0.0.1:8181"
local timeout = 5 -- seconds; longer than any max_wait of the policy

-- These headers of the client are not sent to Penstock.
local dropped = {
  -- They describe the connection or the body. The body is not sent.
  "host", "connection", "keep-alive", "te", "upgrade", "expect", "content-length", "transfer-encoding",
  -- Other proxies use these names. Penstock rejects requests that have both kinds of names.
  "x-original-method", "x-original-uri", "x-original-url",
}

-- Sends one request, and returns the status, headers and body of the response, or nil if there
-- is none. With HTTP/1.0, the response ends with the connection. HAProxy's own client,
-- core.httpclient, is no alternative: it sends a request up to 4 times, each with the whole
-- timeout. In HAProxy 2.6 it even crashes if a request has about 100 headers.
local function ask(headers)
  local lines = { "GET /auth/forward HTTP/1.0" }
  for name, values in pairs(headers) do
    for _, value in pairs(values) do table.insert(lines, name .. ": " .. value) end
  end
  local socket = core.tcp()
  socket:settimeout(timeout)
  local response
  if socket:connect(address) and socket:send(table.concat(lines, "\r\n") .. "\r\n\r\n") then
    response = socket:receive("*a")
  end
  socket:close()
  local status, head, body = (response or ""):match("^HTTP/1%.%d (%d%d%d)[^\r\n]*\r\n(.-\r\n)\r\n(.*)$")
  if not status then return nil end
  local received = {}
  for name, value in head:gmatch("([^:\r\n]+): *([^\r\n]*)\r\n") do
    name = name:lower()
    received[name] = received[name] or {}
    table.insert(received[name], value)
  end
  return tonumber(status), received, body
end

core.register_action("penstock", { "http-req" }, function(txn)
  local headers = txn.http:req_get_headers()
  local host = headers["host"] and headers["host"][0] or ""
  for _, name in ipairs(dropped) do headers[name] = nil end
  headers["x-forwarded-method"] = { txn.f:method() }
  headers["x-forwarded-uri"] = { txn.f:pathq() }
  headers["x-forwarded-host"] = { host }
  headers["x-forwarded-for"] = { txn.f:src() }

  local status, received, body = ask(headers)
  if not status then
    txn:set_var("txn.penstock_down", true)
    return
  end
  -- HAProxy sets these headers itself.
  for _, name in ipairs({ "connection", "content-length" }) do received[name] = nil end
  if status ~= 200 then
    txn:done(txn:reply{ status = status, headers = received, body = body })
  end
  txn:set_priv(received)
end)

-- Adds Penstock's headers about limits to the response of the application. They replace those of
-- the application.
core.register_action("penstock_headers", { "http-res" }, function(txn)
  for name, values in pairs(txn:get_priv() or {}) do
    if name:find("^ratelimit") or name:find("^x%-ratelimit") then txn.http:res_set_header(name, values[1]) end
    if name == "access-control-expose-headers" then txn.http:res_add_header(name, values[1]) end
  end
end)
