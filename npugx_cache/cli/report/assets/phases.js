// Draws the phases of a compile as a flame chart.
"use strict";
(() => {
  const phases = JSON.parse(document.getElementById("phase-data").textContent);
  const box = document.getElementById("phases");
  const total = phases.reduce((sum, [, seconds]) => sum + seconds, 0);
  const words = ({ data }) => `${data.name}: ${data.value.toFixed(2)} s, ${((100 * data.value) / total).toFixed(0)}%`;
  const names = ["first", "second", "third", "fourth"];
  const draw = () => {
    box.replaceChildren();
    const root = {
      name: "compile",
      value: total,
      children: phases.map(([name, value], at) => ({ name, value, at })),
    };
    const colours = names.map((name) => colour(`soft-${name}`));
    const chart = flamegraph.default()
      .width(box.clientWidth).height(56).cellHeight(28).minFrameSize(1).sort(false).inverted(true)
      .transitionDuration(0).selfValue(false).tooltip(false);
    chart.label(words);
    chart.getName(words);
    chart.setColorMapper((node) => (node.data.at === undefined ? colour("soft") : colours[node.data.at % colours.length]));
    d3.select(box).datum(root).call(chart);
  };
  draw();
  document.addEventListener("theme", draw);
  let waiting = 0;
  addEventListener("resize", () => { cancelAnimationFrame(waiting); waiting = requestAnimationFrame(draw); });
})();
