// Makes a page live: charts follow server-sent events, and the parts of the page with data-live are
// replaced by those of the same page, fetched again.
import {Charts} from "./charts.js";
import {sync} from "./sync.js";

const badge = document.getElementById("live");
const charts = new Charts(document);

function show(text, isLost) {
  badge.hidden = false;
  badge.textContent = text;
  badge.classList.toggle("lost", isLost);
}

// A changed choice submits its form at once, so the button of the form is not needed.
for (const choice of document.querySelectorAll("[data-submit]")) {
  choice.form.dataset.submits = "";
  choice.addEventListener("change", () => choice.form.requestSubmit());
}

// refresh fetches the page again. It spends at most a fifth of the time on that, so a page that is
// slow to make is fetched less often.
let isBusy = false, nextRefresh = 0;
async function refresh() {
  if (isBusy || document.hidden || performance.now() < nextRefresh) return;
  isBusy = true;
  const start = performance.now();
  try {
    const response = await fetch(address, {headers: {Accept: "text/html"}});
    if (response.status === 401) return location.reload(); // the session has ended
    if (response.ok) sync(document, await response.text());
  } catch {
    show("not connected", true);
  } finally {
    isBusy = false;
    nextRefresh = performance.now() + 4 * (performance.now() - start);
  }
}

// The response to a posted form cannot be fetched again. The page of its key can.
const address = document.body.querySelector("form.reset") ? keyAddress() : location.href;
function keyAddress() {
  const form = new FormData(document.querySelector("form.reset"));
  const query = new URLSearchParams();
  for (const name of ["key", "ref"]) if (form.get(name)) query.set(name, form.get(name));
  return "key?" + query;
}

// follow opens the stream of events, in place of one that is open.
let source;
function follow() {
  source?.close();
  if (document.hidden) return;
  source = new EventSource("api/v1/events");
  source.addEventListener("state", event => {
    const state = JSON.parse(event.data);
    show("live", false);
    charts.add(state);
    refresh();
  });
  source.addEventListener("error", () => {
    show(source.readyState === EventSource.CLOSED ? "not live" : "connecting again", true);
    if (source.readyState === EventSource.CLOSED) { // too many readers, or the session has ended
      setTimeout(follow, 10_000);
      refresh();
    }
  });
}

// A hidden page needs no events. Browsers allow only six connections to a server without HTTP/2.
document.addEventListener("visibilitychange", () => {
  source?.close();
  if (!document.hidden) charts.load().then(follow);
});
addEventListener("pagehide", () => source?.close());

charts.load().then(follow);
