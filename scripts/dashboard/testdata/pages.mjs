// This program checks the dashboard in Chromium. Its argument is the configuration from dashboard_test.go.
import assert from "node:assert/strict";
import {readFileSync} from "node:fs";
import {createRequire} from "node:module";

const config = JSON.parse(process.argv[2]);
const require = createRequire(config.modules + "/");
const {chromium} = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
const patience = 30_000; // ms for each wait
const counted = {pages: 0, requests: 0, rules: 0}; // rules: of axe

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
});

// open makes a browser context. Its pages must not violate the Content-Security-Policy, log an error, or send a request outside base.
// close checks that.
async function open(base, options = {}) {
  const problems = [];
  const context = await browser.newContext({viewport: {width: 1360, height: 900}, ...options});
  context.setDefaultTimeout(patience);
  await context.addInitScript(() => addEventListener("securitypolicyviolation", e => console.error(`violation of ${e.violatedDirective} by ${e.blockedURI}`)));
  context.on("request", request => {
    counted.requests++;
    const url = new URL(request.url());
    if (url.protocol !== "data:" && !request.url().startsWith(base)) problems.push(`a request leaves the folder: ${url}`);
  });
  context.on("console", message => {
    if (["error", "warning"].includes(message.type()) && !context.mayFail) problems.push(`${message.page()?.url()}: ${message.text()}`);
  });
  context.on("weberror", error => problems.push(String(error.error())));
  const go = async path => {
    counted.pages++;
    const page = await context.newPage();
    const response = await page.goto(base + path);
    assert.equal(response.status(), 200, path);
    return page;
  };
  const close = async () => {
    await context.close();
    assert.deepEqual(problems, []);
  };
  return {context, go, close, problems};
}

// examine checks the accessibility of a page with axe. Its browser context must bypass the Content-Security-Policy, since axe adds styles to
// measure colors.
async function examine(page, name) {
  const found = await page.evaluate(async source => {
    const module = {exports: {}};
    if (!window.axe) new Function("module", "exports", source).call(window, module, module.exports);
    return (window.axe ?? module.exports).run(document, {resultTypes: ["violations"]});
  }, axe);
  counted.rules += found.passes.length;
  assert.deepEqual(found.violations.map(v => `${v.id}: ${v.help}: ${v.nodes.map(n => n.html).slice(0, 3).join(" | ")}`), [], `axe on ${name}`);
}

const api = async (path, base = config.admin) => (await fetch(`${base}api/v1/${path}`)).json();
const control = async path => (await fetch(config.control + path)).status;
const until = async (what, condition) => {
  for (const end = Date.now() + patience; ;) {
    if (await condition()) return;
    assert.ok(Date.now() < end, `timed out waiting for: ${what}`);
    await new Promise(resolve => setTimeout(resolve, 100));
  }
};
const text = async (page, selector) => (await page.locator(selector).innerText()).replace(/[\s\u00a0\u202f]+/g, " ").trim();
const asOperator = {Authorization: `Bearer ${config.token}`};
const numberIn = cell => Number(cell.replace(/[^\d]/g, "")); // without separators of thousands

await until("an offender at both instances", async () => {
  const [one, two] = await Promise.all([api("offenders"), api("offenders", config.other)]);
  return one.instances === 2 && two.instances === 2 && two.offenders[0]?.limit === "hour" && one.offenders[0].count > 50;
});
const ref = (await api("offenders")).offenders[0].ref;
const pages = {
  dashboard: "Overview", "dashboard?rule=export": "Overview", "dashboard?span=minutes": "Overview", rules: "Rules", timeline: "Timeline", [`timeline?at=${new Date(Date.now() - 3600_000).toISOString()}`]: "Timeline", offenders: "Offenders", "offenders?kind=units&window=1h": "Offenders",
  [`key?ref=${ref}`]: "Key", key: "Key", "explain?url=/api/export&header=X-API-Key:%20abc": "Explain", health: "Health", login: "Log in",
};
const pictureName = path => path.replace(/[^a-z]+.*/, "");

// Every page is opened in light and dark mode, under a prefix, on a phone, and without JavaScript.
for (const [name, base, options] of [
  ["light", config.admin, {}], ["dark", config.admin, {colorScheme: "dark"}], ["prefixed", config.prefixed, {}],
  ["narrow", config.admin, {viewport: {width: 390, height: 844}, reducedMotion: "reduce"}], ["without-javascript", config.admin, {javaScriptEnabled: false}],
]) {
  const site = await open(base, options);
  const forAxe = options.javaScriptEnabled === false ? null : await open(base, {...options, bypassCSP: true});
  for (const [path, title] of Object.entries(pages)) {
    const page = await site.go(path);
    assert.equal(await text(page, "h1"), title);
    if (forAxe && title !== "Log in") await page.locator("#live:has-text('live')").waitFor();
    if (options.viewport) assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), `${path} is wider than a phone`);
    if (title === "Overview" || path.startsWith("timeline?")) {
      assert.equal(await page.locator(".chart").count(), 6);
      assert.equal(await page.locator(".chart canvas").count(), forAxe ? 6 : 0);
      for (const units of await page.locator(".chart .units").all()) {
        assert.match(await units.innerText(), /^(requests\/s|ms)\s+time in UTC$/);
        assert.ok(await units.evaluate(p => p.scrollWidth <= p.clientWidth && p.getBoundingClientRect().bottom <= p.nextElementSibling.getBoundingClientRect().top + 1), "the units of a chart are cut or covered");
      }
      assert.equal(await page.locator(".chart .plot > svg path.line").count() > 0, !forAxe);
      await page.locator(".chart details").first().locator("summary").click();
      assert.equal(await page.locator("#table-requests tbody tr").count(), 20);
      await page.locator(".chart details").first().locator("summary").click();
    }
    await page.screenshot({path: `${config.pictures}/${name}-${pictureName(path)}.png`, fullPage: true});
    await page.close();
    if (forAxe) {
      const page = await forAxe.go(path);
      if (title !== "Log in") await page.locator("#live:has-text('live')").waitFor();
      await page.evaluate(() => document.querySelectorAll("details").forEach(d => { d.open = true; }));
      await examine(page, `${name} ${path}`);
      await page.close();
    }
  }
  await site.close();
  await forAxe?.context.close();
  console.log(`${name}: ${Object.keys(pages).length} pages`);
}

// The charts move, and updates keep open tables and the focus.
{
  const site = await open(config.admin);
  const page = await site.go("dashboard");
  await page.locator(".chart canvas").first().waitFor();
  const [room, label] = await page.locator("#chart-requests .uplot").evaluate(plot => {
    const over = plot.querySelector(".u-over"), context = plot.querySelector("canvas").getContext("2d");
    context.font = "12px system-ui, sans-serif";
    return [plot.clientWidth - over.offsetLeft - over.offsetWidth, context.measureText("00:00:00").width];
  });
  assert.ok(room >= label / 2, `a label at the end of the time axis is cut: it needs ${label / 2} px, and has ${room}`);
  const cut = await page.locator(".chart .uplot").evaluateAll(plots => plots.map(plot => {
    const context = plot.querySelector("canvas").getContext("2d");
    context.font = "12px system-ui, sans-serif";
    return plot.querySelector(".u-over").offsetLeft - context.measureText("1500").width;
  }).filter(room => room < 0));
  assert.deepEqual(cut, [], "a label of a vertical axis is cut");
  const image = () => page.locator("#chart-requests canvas").evaluate(canvas => canvas.toDataURL());
  const first = await image();
  await until("the chart to move", async () => await image() !== first);
  await page.locator("#chart-store summary").click();
  const before = await text(page, "#tiles");
  await page.locator("#limits a").first().focus();
  await until("the tiles to change", async () => await text(page, "#tiles") !== before);
  assert.ok(await page.locator("#chart-store details").evaluate(d => d.open), "an open table has closed");
  assert.ok(await page.locator("#limits a").first().evaluate(a => a === document.activeElement), "the focus is lost");
  await page.selectOption("select[name=rule]", "export");
  await page.waitForURL(/rule=export/);
  assert.match(await text(page, "#chart-requests h2"), /of rule export/);
  await page.goto(config.admin);
  await page.keyboard.press("Tab");
  await page.keyboard.press("Enter");
  assert.equal(await page.evaluate(() => document.activeElement.id), "main");
  await site.close();
}

// However often a page is hidden and shown, it has one stream of events.
{
  const site = await open(config.admin);
  await site.context.addInitScript(() => {
    const streams = window.streams = {opened: 0, open: new Set()};
    window.EventSource = class extends EventSource {
      constructor(url) { super(url); streams.opened++; streams.open.add(this); }
      close() { super.close(); streams.open.delete(this); }
    };
  });
  const page = await site.go("dashboard");
  await page.locator("#live:has-text('live')").waitFor();
  await page.evaluate(() => { for (let i = 0; i < 2; i++) document.dispatchEvent(new Event("visibilitychange")); });
  await until("the page to follow events again, twice", () => page.evaluate(() => window.streams.opened === 3));
  assert.equal(await page.evaluate(() => window.streams.open.size), 1);
  await site.close();
}

// Without traffic the numbers do not change, and the pages show the numbers of the API.
{
  await control("pause");
  const site = await open(config.admin, {javaScriptEnabled: false, extraHTTPHeaders: asOperator}); // only operators may name a key
  await until("the counts of a page to be those of the API", async () => {
    const read = async () => JSON.stringify((await api("state")).fleet_counts.filter(c => c.rule && ["allowed", "denied", "waited", "near_limit"].includes(c.name)));
    const state = await read();
    const page = await site.go("dashboard");
    const rows = await page.locator("#limits tbody tr").evaluateAll(rows => rows.map(row => [...row.children].map(cell => cell.textContent)));
    await page.close();
    if (state !== await read()) return false;
    const counts = JSON.parse(state), countOf = (row, name) => counts.find(c => `${c.rule}.${c.limit}` === row[0] && c.name === name)?.last_60s ?? 0;
    const limits = rows.filter(row => row[0].includes("."));
    assert.ok(limits.length >= 3, `the table has ${limits.length} limits; want at least 3`);
    const columns = {allowed: 1, denied: 2, near_limit: 5, waited: 6};
    for (const row of limits) for (const [name, column] of Object.entries(columns)) assert.equal(numberIn(row[column]), countOf(row, name), `${row[0]}: ${name}`);
    return true;
  });
  const offenders = await api("offenders"), page = await site.go("offenders");
  const shown = await page.locator("#offenders tbody tr").evaluateAll(rows => rows.map(row => [row.children[1].textContent, row.children[3].textContent]));
  assert.deepEqual(shown.map(([key, count]) => [key, numberIn(count)]), offenders.offenders.map(o => [o.identity, o.count]));
  const rules = await api("rules"), rulesPage = await site.go("rules");
  assert.deepEqual(await rulesPage.locator(".rule h2").allInnerTexts(), rules.rules.map(r => r.name));
  await rulesPage.locator(".limit summary").first().click();
  for (const bound of rules.rules[0].limits[0].bounds) assert.ok((await text(rulesPage, "#rule-export")).includes(bound.text));
  assert.match(await text(rulesPage, "#rules"), /always rejected ip is 203\.0\.113\.0\/24 Tier gold .* Tier free all other clients .* tier gold 500 per 1s, burst 500 tier free 50 per 1s/);
  await rulesPage.locator("#replay input[type=file]").setInputFiles({name: "replay.json", mimeType: "application/json", buffer: Buffer.from(JSON.stringify(
    {policy: {limits: ["hour", "hour.candidate"].map(limit => ({rule: "export", limit, requests: 200, denied: 50, denied_identities: 3}))}}))});
  await rulesPage.locator("#replay button").click();
  await rulesPage.waitForSelector("#replay table");
  assert.match(await text(rulesPage, "#replay"), /export\.hour 25 % of 200 3 [\d.]+ % of [\d ]+ export\.hour\.candidate 25 % of 200 3 /);
  await rulesPage.screenshot({path: `${config.pictures}/replay.png`, fullPage: true});
  for (const [key, shown, hidden] of [["partner-gold-1", "gold", "free"], ["another", "free", "gold"]]) {
    const found = await text(await site.go("key?key=key:" + key), "#key");
    assert.ok(found.includes("Admitted now") && found.includes("tier " + shown) && !found.includes("tier " + hidden), `the page of ${key} is: ${found}`);
  }
  const health = await site.go("health");
  assert.ok((await text(health, "#health")).includes(`Instances that share it ${(await api("store")).instances}`));
  const explained = await site.go("explain?url=/api/export&header=X-API-Key:%20" + config.offender);
  assert.match(await text(explained, "main"), /It would be denied now.*export\.hour ✕?\s?denies/);
  await site.close();
}

// The offender is found, reset and admitted again, with and without JavaScript.
for (const javaScriptEnabled of [true, false]) {
  const site = await open(config.admin, {javaScriptEnabled});
  await until("the offender to be denied", async () => await control("export") === 429);
  const page = await site.go("offenders");
  await page.locator("#offenders tbody a").first().click();
  await page.waitForURL(/key\?ref=/);
  assert.match(await text(page, "#key"), /Denied now by export\.hour, for .* until \d\d:\d\d:\d\d UTC/);
  const known = await api("key?all=true&ref=" + ref);
  const rows = await page.locator("#key tbody tr").evaluateAll(rows => rows.map(row => [row.children[2].textContent, row.children[4].textContent]));
  assert.deepEqual(rows.map(row => row.map(numberIn)).sort(), known.limits.map(l => [l.used, l.left]).sort());
  assert.equal(await control("export"), 429);
  await page.getByLabel("Reason").fill("ticket 4711");
  site.context.mayFail = true; // 401 is logged as an error
  await page.getByLabel("Operator token").fill("wrong");
  await page.getByRole("button", {name: "Reset"}).click();
  await page.locator("[role=alert]").waitFor();
  assert.match(await text(page, "[role=alert]"), /the token is wrong/);
  assert.equal(await control("export"), 429);
  await page.getByLabel("Operator token").fill(config.token);
  await page.getByRole("button", {name: "Reset"}).click();
  await page.locator(".done").waitFor();
  assert.match(await text(page, ".done"), /Reset\. export\.hour/);
  assert.match(await text(page, "#key"), /Admitted now/);
  assert.equal(await control("export"), 200, "after the reset, the next request is not admitted");
  if (javaScriptEnabled) {
    await page.screenshot({path: `${config.pictures}/light-reset.png`, fullPage: true});
    await until("the page to show the request", async () => /export\.hour 20 per 1h 1 /.test(await text(page, "#key")));
  }
  await site.context.close();
}

// The timeline has the resets, marks them in its charts, and tells only operators why.
{
  const site = await open(config.admin);
  const page = await site.go("timeline");
  const reset = page.locator("#events tbody tr", {hasText: "a key was reset by the admin API"}).first();
  assert.match(await reset.innerText(), /key key:pa…91 /);
  assert.ok(!(await text(page, "#events")).includes("ticket 4711"), "the reason of a reset is shown to everyone");
  assert.ok(!(await text(page, "#events")).includes(config.offender), "a key is shown in clear");
  await page.setExtraHTTPHeaders(asOperator);
  await page.reload();
  assert.match(await reset.innerText(), /reason ticket 4711/);
  await page.setExtraHTTPHeaders({});
  await reset.locator("a").click();
  await page.waitForURL(/timeline\?at=/);
  await page.locator(".chart canvas").first().waitFor();
  const marked = await page.locator("#chart-requests .uplot").evaluate((plot, time) => {
    const canvas = plot.querySelector("canvas"), pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    const over = plot.querySelector(".u-over"), color = getComputedStyle(document.documentElement).getPropertyValue("--muted").trim();
    const wanted = [1, 3, 5].map(i => parseInt(color.slice(i, i + 2), 16)), scale = devicePixelRatio;
    let columns = 0; // of the plot that have the color of a mark over its whole height
    for (let x = over.offsetLeft * scale; x < (over.offsetLeft + over.offsetWidth) * scale; x++) {
      let found = 0;
      for (let y = 0; y < canvas.height; y++) {
        const at = 4 * (Math.floor(y) * canvas.width + Math.floor(x));
        if (wanted.every((c, i) => Math.abs(pixels.data[at + i] - c) < 60)) found++;
      }
      if (found > over.offsetHeight * scale / 4) columns++;
    }
    return columns;
  });
  assert.ok(marked > 0, "the chart has no mark of the reset");
  await page.getByLabel("What happened at").fill("half past two");
  site.context.mayFail = true; // 400 is logged as an error
  await page.getByRole("button", {name: "Show"}).click();
  await page.locator("[role=alert]").waitFor();
  assert.match(await text(page, "[role=alert]"), /is not a time; write 14:05/);
  await page.screenshot({path: `${config.pictures}/light-timeline.png`, fullPage: true});
  await site.context.close();
}

// An operator logs in and out.
{
  const site = await open(config.prefixed);
  const page = await site.go("rules");
  await page.getByRole("link", {name: "Log in"}).click();
  await page.getByLabel("Operator token").fill(config.token);
  await page.getByRole("button", {name: "Log in"}).click();
  await page.waitForURL(config.prefixed + "rules");
  assert.equal(await page.evaluate(() => document.cookie), "", "a script can read the cookie");
  const [cookie] = await site.context.cookies();
  assert.deepEqual([cookie.httpOnly, cookie.sameSite, cookie.path], [true, "Strict", "/penstock"]);
  await page.goto(`${config.prefixed}key?ref=${ref}`);
  assert.equal(await page.getByLabel("Operator token").count(), 0);
  await page.getByLabel("Reason").fill("ticket 4712");
  await page.getByRole("button", {name: "Reset"}).click();
  await page.locator(".done").waitFor();
  await page.getByRole("button", {name: "Log out"}).click();
  await page.getByRole("link", {name: "Log in"}).waitFor();
  assert.deepEqual(await site.context.cookies(), []);
  await site.close();
}

// The store fails and returns. The dashboards of both instances show it.
{
  await control("resume");
  const site = await open(config.admin), other = await open(config.other);
  const page = await site.go("dashboard"), otherPage = await other.go("health");
  await page.locator("#live:has-text('live')").waitFor();
  await control("kill");
  await page.locator(".banner.degraded").waitFor();
  await otherPage.locator(".banner.degraded").waitFor();
  await until("the breaker to be open", async () => /Breaker open/.test(await text(page, "#tiles")) && /Breaker default is open/.test(await page.locator("[role=status]").innerText()));
  await until("local decisions in the chart", async () => /Local [1-9]/.test(await text(page, "#legend-sources")));
  await until("no latency in the chart of a store that fails", async () => /Median – 95 % – 99 % –/.test(await text(page, "#legend-store")));
  await until("the outage in the list of events", async () => /the store made no decision/.test(await text(page, "#events")) && /circuit breaker open/.test(await text(page, "#events")));
  await page.screenshot({path: `${config.pictures}/light-outage.png`, fullPage: true});
  const forAxe = await open(config.admin, {bypassCSP: true});
  for (const path of ["dashboard", "health"]) await examine(await forAxe.go(path), `${path} in an outage`);
  await forAxe.close();
  await page.locator(".banner a").click();
  await page.locator("#over").waitFor();
  assert.match(await text(page, "#over"), /search\.day closed nothing passes/);
  await page.screenshot({path: `${config.pictures}/light-outage-health.png`, fullPage: true});
  await control("start");
  await page.locator(".banner").waitFor({state: "detached"});
  await otherPage.locator(".banner").waitFor({state: "detached"});
  await until("the breaker to be closed", async () => /Breaker closed/.test(await text(page, "#health")));
  await site.close();
  await other.close();
}

await browser.close();
console.log(`dashboard: ${counted.pages} pages, ${counted.requests} requests, none left its origin; 0 violations of the policy; 0 findings of ${counted.rules} rules of axe that applied; a key was reset 3 times`);
