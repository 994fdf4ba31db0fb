// Asks Penstock for a decision: node check.mjs http://localhost:8090 TOKEN user:42
const [url, token, key] = process.argv.slice(2);

// check returns the decision, or null if there is none.
async function check() {
  const question = {rule: "api", key, request_id: crypto.randomUUID()}; // with the id, the second try is free if the first was charged
  for (let i = 0; i < 2; i++) {
    let pause = 0.1;
    try {
      const answer = await fetch(url + "/v1/check", {
        method: "POST", body: JSON.stringify(question), signal: AbortSignal.timeout(1000),
        headers: {"Content-Type": "application/json", Authorization: "Bearer " + token},
      });
      if (answer.ok) return await answer.json();
      const {detail} = await answer.json();
      if (answer.status !== 429 && answer.status !== 503) { // 429: too many calls of this program; 503: no decision; others: our own mistake
        console.error(detail);
        process.exit(1);
      }
      pause = Math.min(Number(answer.headers.get("Retry-After") ?? pause), 1);
    } catch { // the service is away
    }
    await new Promise((resolve) => setTimeout(resolve, pause * 1000));
  }
  return null;
}

const decision = await check();
if (decision === null) console.log("undecided: this program goes on");
else if (decision.allowed) console.log(`allowed, ${decision.limits[0].remaining} left`);
else console.log(`denied, retry after ${decision.retry_after_ms / 1000} s`);
