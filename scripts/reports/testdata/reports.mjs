// This program checks the HTML reports in Chromium. Its argument is the configuration from reports_test.go.
import assert from "node:assert/strict";
import {readFileSync} from "node:fs";
import {createRequire} from "node:module";
import {pathToFileURL} from "node:url";

const config = JSON.parse(process.argv[2]);
const require = createRequire(config.modules + "/");
const {chromium} = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
});

// check opens a report, and runs some checks. The page must load nothing else, violate no policy and log nothing.
async function check(file, options, checks) {
  const problems = [], url = pathToFileURL(file).href;
  const context = await browser.newContext({viewport: {width: 1200, height: 900}, ...options});
  await context.addInitScript(() => addEventListener("securitypolicyviolation", e => console.error(`violation of ${e.violatedDirective} by ${e.blockedURI}`)));
  context.on("request", request => { if (request.url() !== url) problems.push(`a request: ${request.url()}`); });
  context.on("console", message => problems.push(message.text()));
  context.on("weberror", error => problems.push(String(error.error())));
  const page = await context.newPage();
  await page.goto(url);
  await checks(page);
  await context.close();
  assert.deepEqual(problems, [], file);
}

let rules = 0; // of axe
for (const [name, file] of Object.entries(config.files)) {
  const isHostile = name.endsWith("-hostile");
  await check(file, {}, async page => {
    const figures = await page.locator("figure").count();
    assert.ok(figures >= 1, `${name} has no chart`);
    assert.equal(await page.locator("figure canvas").count(), figures);
    assert.equal(await page.locator("section:has(figure):not(:has(table))").count(), 0, `a chart of ${name} has no table`);
    for (const canvas of await page.locator("figure canvas").all()) {
      const drawn = await canvas.evaluate(c => new Set(new Uint32Array(c.getContext("2d").getImageData(0, 0, c.width, c.height).data.buffer)).size);
      assert.ok(drawn > 10, `a chart of ${name} is empty`);
    }
    await page.screenshot({path: `${config.pictures}/${name}.png`, fullPage: true});
    if (isHostile) {
      assert.equal(await page.evaluate(() => window.hacked), undefined);
      assert.equal(await page.locator("script").count(), 2);
      assert.equal(await page.locator("img, style + style, [onerror], [onload], [onfocus]").count(), 0);
      const text = await page.locator("body").innerText();
      for (const shown of config.hostile) assert.ok(text.includes(shown), `${name} lacks the text ${shown}`);
    }
    const pdf = await page.pdf();
    assert.ok(pdf.length > 10_000, `${name} prints to ${pdf.length} bytes`);
  });
  await check(file, {javaScriptEnabled: false}, async page => assert.ok(await page.locator("table tbody tr").count() > 0, `${name} has no table without JavaScript`));
  await check(file, {viewport: {width: 390, height: 844}}, async page => assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), `${name} is wider than a phone`));
  await check(file, {bypassCSP: true}, async page => {
    const found = await page.evaluate(async source => {
      new Function(source).call(window);
      return window.axe.run(document, {resultTypes: ["violations"]});
    }, axe);
    rules += found.passes.length;
    assert.deepEqual(found.violations.map(v => `${v.id}: ${v.help}: ${v.nodes.map(n => n.html).slice(0, 3).join(" | ")}`), [], `axe on ${name}`);
  });
  console.log(`${name}: ok`);
}
await browser.close();
console.log(`counted: ${Object.keys(config.files).length} reports, ${rules} rules of axe`);
