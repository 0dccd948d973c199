// Draws the store over time.
"use strict";
(() => {
  const days = JSON.parse(document.getElementById("days").textContent);
  const boxes = { growth: document.getElementById("growth"), lookups: document.getElementById("lookups") };
  const size = (number) => {
    const units = ["B", "kB", "MB", "GB", "TB"];
    let at = 0;
    while (number >= 1000 && at < units.length - 1) { number /= 1000; at += 1; }
    return `${Number(number.toPrecision(3))} ${units[at]}`;
  };
  const date = (stamp) => new Date(stamp * 1000).toISOString().slice(0, 10);
  const charts = [];

  const axis = (more) => ({
    stroke: colour("text"), grid: { stroke: colour("line"), width: 1 }, ticks: { stroke: colour("line") }, ...more,
  });
  const dayAxis = () => axis({
    space: 56,
    incrs: [1, 2, 7, 14, 28, 91, 182].map((count) => count * 86400),
    values: (_, ticks) => ticks.map((tick) => date(tick).slice(5)),
  });
  const series = (label, name, more) => ({
    label, stroke: colour(name), width: 2, points: { show: days.stamp.length < 40, size: 6 }, ...more,
  });
  const common = (box, height) => ({
    width: box.clientWidth, height, tzDate: (stamp) => uPlot.tzDate(new Date(stamp * 1000), "UTC"),
  });
  const day = { value: (_, stamp) => (stamp == null ? "-" : date(stamp)) };
  // A week at least, or one day would be a line of its own.
  const last = days.stamp.at(-1);
  const span = [Math.min(days.stamp[0], last - 6 * 86400) - 43200, last + 43200];

  const draw = () => {
    charts.splice(0).forEach((chart) => chart.destroy());
    charts.push(new uPlot({
      ...common(boxes.growth, 220),
      scales: { x: { range: span }, y: { range: (_, low, high) => [0, high * 1.1 || 1] }, size: { range: (_, low, high) => [0, high * 1.1 || 1] } },
      axes: [dayAxis(), axis({ size: 50, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 1e5] }), axis({ scale: "size", side: 1, size: 70, grid: { show: false }, values: (_, ticks) => ticks.map(size) })],
      series: [{ label: "Day", ...day }, series("Entries", "first"), series("Size", "second", { scale: "size", dash: [6, 4], value: (_, number) => (number == null ? "-" : size(number)) })],
    }, [days.stamp, days.entries, days.size], boxes.growth));
    charts.push(new uPlot({
      ...common(boxes.lookups, 220),
      scales: { x: { range: span }, y: { range: (_, low, high) => [0, high * 1.1 || 1] } },
      axes: [dayAxis(), axis({ size: 50, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 1e5] })],
      series: [{ label: "Day", ...day }, series("Hits", "first"), series("Misses", "second", { dash: [6, 4] }), series("Bypasses", "third", { dash: [2, 3] })],
    }, [days.stamp, days.hits, days.misses, days.bypasses], boxes.lookups));
  };
  draw();
  document.addEventListener("theme", draw);
  let waiting = 0;
  addEventListener("resize", () => {
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(() => {
      charts.forEach((chart) => chart.setSize({ width: chart.root.parentElement.clientWidth, height: 220 }));
    });
  });
})();
