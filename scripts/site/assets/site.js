"use strict";

// wordsOf returns the words of a text, in lower case. "X-Forwarded-For" is a word, and so is each of its parts.
function wordsOf(text) {
  const whole = text.toLowerCase().split(/[\s,;:!?()"'`“”|=<>{}[\]]+/).map(w => w.replace(/^[./-]+|[.]+$/g, ""));
  return whole.concat(...whole.filter(w => /[-_./]/.test(w)).map(w => w.split(/[-_./]/))).filter(w => w);
}

// stem removes some endings, so that limits, limited and limiting match limit.
const stem = w => w.length > 4 ? w.replace(/(?:ing|ed|es|s)$/, "") : w;

// match returns how well a word matches one of several: 1 if one is equal, less if one only begins with it.
function match(words, wanted) {
  let best = 0;
  for (const w of words) {
    if (w === wanted || stem(w) === stem(wanted)) return 1;
    if (wanted.length > 1 && w.startsWith(wanted)) best = Math.max(best, 0.5);
  }
  return best;
}

let prepared;

// search returns at most as many sections as most, the best first. A section must have every word of the query. In the index, a section has
// u: its URL, t: the title of its page, h: its heading, w: words of docs/README.md that link to it, and x: its text. The scores are chosen so
// that make site-check passes.
function search(query, most) {
  prepared ??= window.searchIndex.map(s => ({
    s, title: wordsOf(s.t), name: wordsOf(s.h ?? ""), lead: wordsOf(s.w ?? ""), text: wordsOf(s.x),
    phrases: ((s.h ?? "") + " | " + s.t + " | " + (s.w ?? "")).toLowerCase(), body: s.x.toLowerCase(),
  }));
  const phrase = query.trim().toLowerCase();
  const wanted = wordsOf(query);
  if (!wanted.length) return [];
  const hits = [];
  for (const p of prepared) {
    let score = 0;
    for (const w of wanted) {
      const one = 10 * match(p.lead, w) + 8 * match(p.name, w) + 5 * match(p.title, w) + 2 * match(p.text, w);
      if (!one) { score = 0; break; }
      score += one;
    }
    if (!score) continue;
    if (p.phrases.includes(phrase)) score += 12;
    else if (p.body.includes(phrase)) score += 2;
    if (p.s.u.startsWith("decisions/") || p.s.u.startsWith("changelog")) score *= 0.4;
    if (p.s.u.startsWith("documentation")) score *= 0.3;
    hits.push({ ...p.s, score });
  }
  return hits.sort((a, b) => b.score - a.score).slice(0, most);
}

function setUp() {
  const root = document.querySelector("script[data-root]").dataset.root;
  const input = document.getElementById("search"), list = document.getElementById("results");
  let selected = -1;

  // ready loads the index when it is needed for the first time.
  const ready = () => window.searchIndex ? Promise.resolve() : new Promise((done, fail) => {
    const script = document.createElement("script");
    script.src = root + "search-index.js";
    script.onload = done;
    script.onerror = fail;
    document.head.append(script);
  });

  // marked returns a text in which the wanted words are marked.
  const marked = (text, wanted) => {
    const parts = document.createDocumentFragment();
    const pattern = new RegExp("(" + wanted.map(w => w.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join("|") + ")", "ig");
    for (const part of text.split(pattern)) {
      if (pattern.test(part)) {
        const mark = document.createElement("mark");
        mark.textContent = part;
        parts.append(mark);
      } else parts.append(part);
      pattern.lastIndex = 0;
    }
    return parts;
  };

  // excerpt returns the part of a text around the first wanted word.
  const excerpt = (text, wanted) => {
    const low = text.toLowerCase();
    const at = Math.min(...wanted.map(w => low.indexOf(w)).filter(i => i >= 0), text.length);
    const from = at === text.length || at < 60 ? 0 : low.indexOf(" ", at - 50) + 1;
    return (from ? "… " : "") + text.slice(from, from + 170);
  };

  const select = n => {
    const links = list.querySelectorAll("a");
    selected = links.length ? (n + links.length) % links.length : -1;
    links.forEach((a, i) => a.classList.toggle("selected", i === selected));
    links[selected]?.scrollIntoView({ block: "nearest" });
  };

  const show = async () => {
    const query = input.value;
    if (!query.trim()) { list.hidden = true; return; }
    await ready();
    const wanted = wordsOf(query);
    list.replaceChildren(...search(query, 12).map(r => {
      const item = document.createElement("li"), a = document.createElement("a"), name = document.createElement("b"), small = document.createElement("small");
      a.href = root + r.u;
      name.append(marked(r.h ? r.h + " – " + r.t : r.t, wanted));
      small.append(marked(excerpt(r.x, wanted), wanted));
      a.append(name, small);
      item.append(a);
      return item;
    }));
    if (!list.children.length) {
      const none = document.createElement("li");
      none.className = "none";
      none.textContent = "No section has all of these words.";
      list.append(none);
    }
    list.hidden = false;
    select(0);
  };

  input.addEventListener("input", show);
  input.addEventListener("focus", show);
  input.addEventListener("keydown", e => {
    if (e.key === "ArrowDown") select(selected + 1);
    else if (e.key === "ArrowUp") select(selected - 1);
    else if (e.key === "Enter") list.querySelectorAll("a")[selected]?.click();
    else if (e.key === "Escape") { list.hidden = true; input.blur(); }
    else return;
    e.preventDefault();
  });
  list.addEventListener("click", () => { list.hidden = true; });
  document.addEventListener("click", e => { if (!e.target.closest(".search")) list.hidden = true; });
  document.addEventListener("keydown", e => {
    if (e.key === "/" && !/^(INPUT|TEXTAREA)$/.test(document.activeElement.tagName)) { e.preventDefault(); input.focus(); }
  });

  for (const h of document.querySelectorAll("main h2[id], main h3[id]")) {
    const a = document.createElement("a");
    a.className = "self";
    a.href = "#" + h.id;
    a.textContent = "#";
    a.setAttribute("aria-label", "Link to this section");
    h.append(a);
  }
  for (const pre of document.querySelectorAll("main pre")) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(pre.querySelector("code").textContent);
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
    pre.append(button);
  }
  const current = document.querySelector("nav a[aria-current]"), nav = document.querySelector("nav");
  if (current && nav.scrollHeight > nav.clientHeight) nav.scrollTop = current.offsetTop - nav.clientHeight / 2;
  if (matchMedia("(max-width: 780px)").matches) document.querySelector("nav .menu").open = false;
  const query = new URLSearchParams(location.search).get("q");
  if (query) { input.value = query; input.focus(); show(); }
}

if (document.getElementById("search")) setUp();
