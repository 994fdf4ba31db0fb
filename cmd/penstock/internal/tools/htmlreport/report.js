"use strict";
const dashes = [[], [7, 3], [2, 3], [12, 4], [8, 3, 2, 3]];
const printWidth = 680; // of a chart on paper, in pixels
const color = name => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
const short = v => v === null || v === undefined ? "" : v === 0 ? "0" : String(+v.toPrecision(3)).replace(/\B(?=(\d{3})+$)/g, "\u202f");

// times writes the times of an axis: the date, hours and minutes, or also seconds.
const times = (_, ticks) => {
  const step = ticks[1] - ticks[0], part = step < 60 ? [11, 19] : step < 86_400 ? [11, 16] : [0, 10];
  return ticks.map(t => new Date(t * 1000).toISOString().slice(...part));
};

for (const figure of document.querySelectorAll("figure")) {
  const spec = JSON.parse(figure.dataset.chart), plot = figure.querySelector(".plot");
  const axis = {stroke: color("muted"), grid: {stroke: color("grid"), width: 1}, ticks: {show: false}};
  const labels = (_, ticks) => ticks.map(short);
  const scale = spec.isLog ? {distr: 3} : {};
  const isRank = spec.x.every((x, i) => x === i + 1);
  const gap = (low, high) => (high - low) / (spec.x.length - 1) || 1; // between two bars
  const hasBars = spec.lines.some(line => line.isBar);
  const chart = new uPlot({
    width: plot.clientWidth, height: 260,
    legend: {show: false},
    cursor: {show: false},
    tzDate: seconds => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
    scales: {
      x: {time: spec.isTime, ...scale, ...(hasBars ? {range: (_, low, high) => [low - 0.6 * gap(low, high), high + 0.6 * gap(low, high)]} : {})},
      y: spec.isLog ? scale : {range: (_, low, high) => [0, (high || 1) * 1.05]},
    },
    axes: [{...axis, space: 70, ...(isRank ? {incrs: [1, 2, 5, 10]} : {}), values: spec.isTime ? times : labels}, {...axis, size: 64, values: labels}],
    series: [{}, ...spec.lines.map((line, i) => ({
      label: line.label, stroke: color("line" + (i + 1)), width: 1.75, dash: line.isBar ? [] : dashes[i], points: {show: !line.isBar && spec.x.length < 3},
      ...(line.isBar ? {fill: color("line" + (i + 1)), paths: uPlot.paths.bars({size: [0.7, 60]})} : {}),
    }))],
  }, [spec.x, ...spec.lines.map(line => spec.isLog ? line.values.map(v => v < 1 ? null : v) : line.values)], plot);
  const fit = width => { if (width && width !== chart.width) chart.setSize({width, height: 260}); };
  addEventListener("beforeprint", () => fit(printWidth));
  addEventListener("afterprint", () => fit(plot.clientWidth));
  addEventListener("resize", () => fit(plot.clientWidth));
}
