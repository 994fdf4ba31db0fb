// Limits the requests of an Express server: PENSTOCK_URL=http://localhost:8090 PENSTOCK_TOKEN=... PORT=3000 node app.mjs
import express from "express";
const {PENSTOCK_URL, PENSTOCK_TOKEN, PORT} = process.env;

// limit responds to a denied request, and to one that Penstock cannot read. If there is no decision for another reason, the request passes,
// with a line in the log.
async function limit(req, res, next) {
  const user = req.get("X-User") ?? ""; // in your server: the user that the authentication has found
  try {
    const check = await fetch(PENSTOCK_URL + "/v1/check?status=429", {
      method: "POST", signal: AbortSignal.timeout(1000),
      headers: {"Content-Type": "application/json", Authorization: "Bearer " + PENSTOCK_TOKEN},
      body: JSON.stringify({attributes: {method: req.method, path: req.originalUrl.split("?")[0], address: req.ip, descriptors: {user}}}),
    });
    const decision = await check.json();
    if (check.status === 400 || check.status === 409) { // if such a request passed, clients could choose to have no limits
      console.error("the request is rejected:", decision.detail);
      return res.status(400).json({error: "malformed"});
    }
    if (typeof decision.allowed !== "boolean") throw new Error(decision.detail);
    for (const name of ["RateLimit", "RateLimit-Policy", "Retry-After"]) {
      if (check.headers.has(name)) res.set(name, check.headers.get(name));
    }
    if (!decision.allowed) return res.status(check.status).json({error: decision.outcome});
  } catch (error) {
    console.error("no decision, so the request passes:", error.message);
  }
  next();
}

const app = express();
app.use(limit);
app.get("/hello", (req, res) => res.send("hello"));
app.listen(PORT, "127.0.0.1");
