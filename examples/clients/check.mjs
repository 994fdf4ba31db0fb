// Gets a decision from Penstock: node check.mjs http://localhost:8090 TOKEN user:42
const [url, token, key] = process.argv.slice(2);

// check returns the decision, or null if there is none.
async function check() {
  const body = {rule: "api", key, request_id: crypto.randomUUID()}; // with the id, the second try is free if the first was charged
  for (let i = 0; i < 2; i++) {
    let pause = 0.1;
    try {
      const response = await fetch(url + "/v1/check", {
        method: "POST", body: JSON.stringify(body), signal: AbortSignal.timeout(1000),
        headers: {"Content-Type": "application/json", Authorization: "Bearer " + token},
      });
      if (response.ok) return await response.json();
      const {detail} = await response.json();
      if (response.status !== 429 && response.status !== 503) { // 429: a proxy limits the calls of this program; 503: no decision; others: our own mistake
        console.error(detail);
        process.exit(1);
      }
      pause = Math.min(Number(response.headers.get("Retry-After") ?? pause), 1);
    } catch { // the service does not respond
    }
    await new Promise((resolve) => setTimeout(resolve, pause * 1000));
  }
  return null;
}

const decision = await check();
if (decision === null) console.log("undecided: this program goes on");
else if (decision.allowed) console.log(`allowed, ${decision.limits[0].remaining} left`);
else if (decision.retry_after_ms < 0) console.log("denied, do not retry");
else console.log(`denied, retry after ${decision.retry_after_ms / 1000} s`);
