// Charts draws the lines that the server describes, and moves them with each event. Its numbers are
// those of api/v1/history and api/v1/timings.
const dashes = {1: [], 2: [7, 3], 3: [2, 3], 4: [12, 4], 5: [8, 3, 2, 3], 6: [4, 4]};
const meanOf = 5; // seconds whose mean is a point of a rate
const recentSeconds = 10; // as in the tiles

export class Charts {
  constructor(document) {
    this.box = document.querySelector(".charts");
    if (!this.box) return;
    this.isByMinute = this.box.dataset.span === "minutes";
    this.length = this.isByMinute ? 1440 : 600;
    this.from = Number(this.box.dataset.from ?? 0); // the past period that is shown, in seconds since 1970; 0: the charts are live
    this.to = Number(this.box.dataset.to ?? 0);
    this.charts = [...this.box.querySelectorAll(".chart")].map(figure => new Chart(figure, this));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw(true));
    new ResizeObserver(() => this.charts.forEach(chart => chart.resize())).observe(this.box);
  }

  // load fetches all numbers. Without them, the pictures of the server stay.
  async load() {
    if (!this.box) return;
    const span = `span=${this.isByMinute ? "minutes" : "seconds"}&last=${this.length}`;
    const rule = this.box.dataset.rule ? "&rule=" + encodeURIComponent(this.box.dataset.rule) : "";
    try {
      const [history, timings, ofRule] = await Promise.all(
        [`history?${span}&sum=rules`, `timings?${span}`, rule && `history?${span}&sum=rules${rule}`].map(path => path && get(path)));
      this.history = new Series(this.length, linesOf(history), history.last);
      if (ofRule) this.history.merge(linesOf(ofRule, true), ofRule.last);
      this.times = {store: new Series(this.length, timings.store, timings.last)};
      if (timings.upstream) this.times.upstream = new Series(this.length, timings.upstream, timings.last);
      this.end = Date.parse(history.end) / 1000;
      this.start = this.end - history.last * this.step;
      this.loaded = performance.now();
      this.draw(true);
    } catch (error) {
      console.warn("the charts are not live:", error.message);
    }
  }

  get step() { return this.isByMinute ? 60 : 1; }

  // add appends the last seconds, which an event has. It loads all numbers again if the charts show
  // minutes, or if the event lacks some seconds.
  add(state) {
    if (!this.history || this.to) return;
    const {recent, recent_timings: times} = state;
    const isLate = recent.last - this.history.last > recent.lines[0]?.counts.length || recent.last < this.history.last;
    if (this.isByMinute || isLate || (recent.cut && this.box.dataset.rule)) {
      if (performance.now() - this.loaded > (this.isByMinute ? 15_000 : 1_000)) this.load();
      return;
    }
    this.history.merge(linesOf(recent), recent.last);
    this.times.store.merge(times.store, times.last);
    if (times.upstream) this.times.upstream?.merge(times.upstream, times.last);
    this.draw(false);
  }

  draw(isNew) { this.charts.forEach(chart => chart.draw(isNew)); }
}

async function get(path) {
  const response = await fetch("api/v1/" + path);
  if (!response.ok) throw new Error(`${path}: ${response.status}`);
  return response.json();
}

// linesOf returns the counts of a history by rule and name.
function linesOf(history, onlyRules) {
  const lines = {};
  for (const line of history.lines) if (line.rule || !onlyRules) lines[`${line.rule ?? ""} ${line.name}`] = line.counts;
  return lines;
}

// A Series has the latest numbers of some lines. last is the second or minute of the latest number,
// counted from the start of the instance. A line that an event adds was 0 before.
class Series {
  constructor(length, lines, last) {
    this.length = length;
    this.last = last;
    this.lines = {};
    this.merge(lines, last);
  }

  merge(lines, last) {
    const shift = last - this.last;
    for (const name of new Set([...Object.keys(this.lines), ...Object.keys(lines)])) {
      const values = this.lines[name] ?? new Array(this.length).fill(0);
      if (shift > 0) values.push(...new Array(shift).fill(0));
      const recent = lines[name] ?? [];
      recent.forEach((value, i) => { values[values.length - recent.length + i] = value; });
      values.splice(0, values.length - this.length);
      this.lines[name] = values;
    }
    this.last = last;
  }

  // sum adds up lines.
  sum(names) {
    const total = new Array(this.length).fill(0);
    for (const name of names) this.lines[name]?.forEach((value, i) => { total[i] += value; });
    return total;
  }
}

// A Chart is one figure.
class Chart {
  constructor(figure, all) {
    this.all = all;
    this.plot = figure.querySelector(".plot");
    this.labels = [...figure.querySelectorAll(".legend b")];
    this.unit = figure.dataset.unit;
    this.source = figure.dataset.source;
    this.lines = JSON.parse(figure.dataset.lines);
  }

  // values are the numbers of a line: rates for each second, or times in milliseconds.
  values(line) {
    const {all} = this;
    if (this.source === "history") return this.rates(all.history.sum(line.series.map(name => `${line.rule ?? ""} ${name}`)));
    const series = all.times[this.source];
    if (!series) return new Array(all.length).fill(null);
    if (line.field === "calls" || line.field === "failed") return this.rates(series.sum([line.field]));
    const calls = series.lines.calls;
    return series.lines[line.field].map((us, i) => calls[i] ? us / 1000 : null);
  }

  rates(counts) {
    if (this.all.isByMinute) return counts.map(n => n / 60);
    let sum = 0;
    return counts.map((n, i) => {
      sum += n - (i >= meanOf ? counts[i - meanOf] : 0);
      return sum / Math.min(i + 1, meanOf);
    });
  }

  draw(isNew) {
    const {all} = this;
    if (!all.history) return;
    const end = all.start + all.history.last * all.step;
    const shown = Math.min(60 * (Math.floor(all.history.last / 60) + 1), all.length); // since the start
    const times = Array.from({length: shown}, (_, i) => end - (shown - 1 - i) * all.step);
    let data = [times, ...this.lines.map(line => this.values(line).slice(-shown))];
    if (all.to) data = data.map(values => values.filter((_, i) => times[i] > all.from && times[i] <= all.to));
    const recent = all.isByMinute ? 1 : recentSeconds; // an older number is not a current one
    this.lines.forEach((_, i) => { this.labels[i].textContent = this.format(data[i + 1].slice(-recent).findLast(v => v !== null)); });
    if (isNew || !this.chart) {
      this.chart?.destroy();
      this.plot.replaceChildren();
      this.chart = new uPlot(this.options(), data, this.plot);
      return;
    }
    this.chart.setData(data);
  }

  format(value) {
    if (value === undefined) return "–";
    const text = number(value);
    return this.unit === "ms" ? text + "\u00a0ms" : text + this.unit;
  }

  resize() {
    if (this.chart && this.chart.width !== this.plot.clientWidth) this.chart.setSize({width: this.plot.clientWidth, height: this.plot.clientHeight});
  }

  options() {
    const style = getComputedStyle(document.documentElement), color = name => style.getPropertyValue("--" + name).trim();
    const axis = {stroke: color("muted"), font: "12px system-ui, sans-serif", grid: {stroke: color("grid"), width: 1}, ticks: {show: false}};
    return {
      width: this.plot.clientWidth, height: this.plot.clientHeight,
      legend: {show: false},
      cursor: {drag: {x: false, y: false}, points: {show: false}, x: false, y: false},
      padding: [8, 28, 0, 0], // on the right, half of a label with seconds
      tzDate: seconds => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
      hooks: {drawAxes: [drawMarks]},
      scales: {y: {range: (_, low, high) => [0, axisEnd(high ?? 0)]}},
      axes: [
        {...axis, gap: 4, size: 26, grid: {show: false}, space: (_, axis, low, high, width) => 60 * width / (high - low) < 70 ? 44 : 70, values: (_, ticks) => ticks.map(seconds => clock(seconds, ticks[1] - ticks[0]))},
        {...axis, gap: 6, size: widthOf, splits: (_, axis, low, high) => ticksTo(high), values: (_, ticks) => ticks.map(tick => tick === 0 ? "0" : String(+tick.toPrecision(3)))},
      ],
      series: [{}, ...this.lines.map(line => ({
        label: line.label, stroke: color("line" + line.style), fill: line.style === 1 && this.unit !== "ms" ? color("line1") + "14" : undefined, width: 1.75, dash: dashes[line.style], spanGaps: this.unit === "ms", points: {show: true, size: 4, fill: color("line" + line.style), filter: isolated},
      }))],
    };
  }
}

// widthOf is the width of an axis with these labels.
const widthOf = (chart, labels) => Math.max(46, 14 + 8 * Math.max(0, ...(labels ?? []).map(label => label.length)));

// isolated returns the point of a line that has only one, so that the chart marks it with a dot.
const isolated = (chart, i) => {
  const known = chart.data[i].flatMap((v, n) => v === null ? [] : [n]);
  return known.length === 1 ? known : [];
};

const clock = (seconds, step) => new Date(seconds * 1000).toLocaleTimeString([], {hour: "2-digit", minute: "2-digit", second: step < 60 ? "2-digit" : undefined, hour12: false, timeZone: "UTC"});

// drawMarks draws a line at the time of each event that the page lists.
function drawMarks(chart) {
  const {ctx, bbox: {left, top, width, height}} = chart, style = getComputedStyle(document.documentElement);
  ctx.save();
  for (const time of document.querySelectorAll("#events time")) {
    const x = chart.valToPos(Date.parse(time.dateTime) / 1000, "x", true);
    if (!(x >= left && x <= left + width)) continue;
    const isBad = time.closest("tr").querySelector(".bad") !== null;
    ctx.strokeStyle = style.getPropertyValue(isBad ? "--bad" : "--muted").trim();
    ctx.lineWidth = (isBad ? 2 : 1) * devicePixelRatio;
    ctx.setLineDash([2 * devicePixelRatio, 2 * devicePixelRatio]);
    ctx.beginPath();
    ctx.moveTo(x, top);
    ctx.lineTo(x, top + height);
    ctx.stroke();
  }
  ctx.restore();
}

// axisStep and axisEnd return the same as the functions of the server in chart.go.
function axisStep(most) {
  for (let power = 0.01; ; power *= 10) {
    for (const n of [1, 2, 5]) if (4 * n * power >= most) return n * power;
  }
}

function axisEnd(most) {
  if (most <= 0) return 1;
  const step = axisStep(most);
  return step * Math.ceil(most / step);
}

// ticksTo returns the ticks of an axis that ends at end, from 0 on.
function ticksTo(end) {
  const step = axisStep(end);
  return Array.from({length: Math.round(end / step) + 1}, (_, i) => i * step);
}

// number writes a number as the server does.
function number(v) {
  if (v === 0) return "0";
  if (v < 0.005) return "<\u200a0.01";
  if (v >= 99.95) return String(Math.round(v)).replace(/\B(?=(\d{3})+$)/g, "\u202f");
  return v.toFixed(v >= 9.995 ? 1 : 2);
}
