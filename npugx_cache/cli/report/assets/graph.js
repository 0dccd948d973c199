// Draws the graph of an entry. Layers are closed at first: what is in them is laid out when one is opened.
"use strict";
(() => {
  const { nodes, edges } = JSON.parse(document.getElementById("graph").textContent);
  const box = document.getElementById("drawing");
  const about = document.getElementById("about");
  const opened = new Set();
  const layers = nodes.flatMap((node, at) => (node.kind === "layer" ? [at] : []));
  const colours = {
    input: "input", results: "input", layer: "layer", "matrix products": "first", attention: "third", collectives: "third",
    views: "soft", copies: "second", "new tensors": "second", reductions: "fourth", others: "fourth",
  };
  let chosen = null;

  const gives = (node) => node.about.find(([name]) => name === "gives")?.[1] ?? "";
  const title = (at) => (nodes[at].kind === "layer" ? `${nodes[at].title} \u00d7 ${nodes[at].copies}` : nodes[at].title);
  const cut = (text) => (text.length > 34 ? `${text.slice(0, 33)}\u2026` : text);
  const label = (at) => {
    const below = nodes[at].kind === "layer" ? `${nodes[at].copies} copies, click to open` : cut(gives(nodes[at]));
    return below ? `${cut(title(at))}\n${below}` : cut(title(at));
  };
  const pen = document.createElement("canvas").getContext("2d");
  pen.font = "12px system-ui, sans-serif";
  const width = (text) => Math.max(...text.split("\n").map((line) => pen.measureText(line).width)) + 24;

  // The box that stands for a node now: the outermost closed layer around it, or the node itself.
  const shownAs = (at) => {
    let found = at;
    for (let parent = nodes[at].parent; parent !== null; parent = nodes[parent].parent) {
      if (!opened.has(parent)) found = parent;
    }
    return found;
  };

  const elements = () => {
    const found = [];
    nodes.forEach((node, at) => {
      if (shownAs(at) !== at) return;
      const text = opened.has(at) ? `${title(at)} (double click closes)` : label(at);
      const data = { id: `n${at}`, at, label: text, kind: node.kind, width: width(text), height: text.includes("\n") ? 40 : 28 };
      if (node.parent !== null) data.parent = `n${node.parent}`;
      found.push({ data, classes: opened.has(at) ? "opened" : node.kind === "layer" ? "closed" : "" });
    });
    const seen = new Set();
    for (const [source, target, again] of edges) {
      const [from, to] = [shownAs(source), shownAs(target)];
      const key = `${from} ${to} ${again}`;
      if (from === to || seen.has(key)) continue;
      seen.add(key);
      found.push({ data: { id: `e${key}`, source: `n${from}`, target: `n${to}` }, classes: again ? "again" : "" });
    }
    return found;
  };

  const style = () => {
    const text = colour("text");
    const named = Object.fromEntries(["first", "second", "third", "fourth", "input", "layer"].map((name) => [name, colour(`soft-${name}`)]));
    named.soft = colour("soft");
    return [
      { selector: "node", style: {
        shape: "round-rectangle", width: "data(width)", height: "data(height)", label: "data(label)",
        "text-wrap": "wrap", "text-valign": "center", "text-halign": "center", "font-size": 12, "font-family": "system-ui, sans-serif",
        "line-height": 1.25, color: text, "border-width": 1, "border-color": colour("edge"),
        "background-color": (node) => named[colours[node.data("kind")] ?? "soft"],
      } },
      { selector: "node.closed", style: { "border-width": 2, "border-color": colour("accent"), "font-weight": "bold" } },
      { selector: "node.opened", style: {
        "background-color": colour("card"), "border-width": 2, "border-color": colour("accent"), "text-valign": "top", "text-margin-y": -4, "text-events": "yes", padding: 18,
      } },
      { selector: "edge", style: {
        width: 1.2, "line-color": colour("edge"), "target-arrow-color": colour("edge"), "target-arrow-shape": "triangle", "arrow-scale": 0.8, "curve-style": "bezier",
      } },
      { selector: "edge.again", style: { "line-style": "dashed", "line-color": colour("accent"), "target-arrow-color": colour("accent"), "curve-style": "unbundled-bezier" } },
      { selector: "node.chosen", style: { "border-width": 4, "border-color": colour("focus") } },
    ];
  };

  const cy = cytoscape({
    container: box, elements: [], style: style(), minZoom: 0.02, maxZoom: 3, boxSelectionEnabled: false,
    autoungrabify: true, userZoomingEnabled: false, selectionType: "single",
  });

  const layOut = () => {
    cy.batch(() => { cy.elements().remove(); cy.add(elements()); });
    // An edge to the next copy would turn a layer upside down.
    cy.elements().not(".again").layout({ name: "dagre", rankDir: "TB", nodeSep: 18, rankSep: 26, animate: false, fit: false }).run();
    const found = chosen === null ? null : shownAs(chosen);
    chosen = found;
    if (found !== null) cy.$id(`n${found}`).addClass("chosen");
    for (const button of document.querySelectorAll("#layers button")) {
      const at = Number(button.dataset.at);
      button.setAttribute("aria-expanded", String(opened.has(at)));
      button.hidden = shownAs(at) !== at;
    }
  };

  // Small graphs are shown in whole; of large ones the beginning, at a size that can be read.
  const look = (part, first = part) => {
    cy.fit(part, 24);
    if (cy.zoom() > 1) { cy.zoom(1); cy.center(part); }
    if (cy.zoom() < 0.7) {
      const [inner, whole] = [first.boundingBox(), part.boundingBox()];
      cy.zoom(0.85);
      cy.pan({ x: box.clientWidth / 2 - 0.85 * (inner.x1 + inner.x2) / 2, y: 24 - 0.85 * whole.y1 });
    }
  };

  const tell = (at) => {
    const list = document.createElement("dl");
    for (const [name, text] of [["box", title(at)], ["kind", nodes[at].kind], ...nodes[at].about]) {
      const [term, description] = [document.createElement("dt"), document.createElement("dd")];
      term.textContent = name;
      description.textContent = text;
      list.append(term, description);
    }
    about.replaceChildren(list);
  };

  const choose = (at, { follow }) => {
    cy.nodes(".chosen").removeClass("chosen");
    chosen = at;
    const node = cy.$id(`n${at}`).addClass("chosen");
    tell(at);
    const { x, y } = node.renderedPosition();
    const inside = x > 60 && y > 30 && x < box.clientWidth - 60 && y < box.clientHeight - 30;
    if (follow && !inside && !opened.has(at)) cy.center(node);
  };

  const toggle = (at) => {
    if (opened.has(at)) opened.delete(at); else opened.add(at);
    chosen = at;
    layOut();
    choose(at, { follow: false });
    const layer = cy.$id(`n${at}`);
    if (opened.has(at)) look(layer, layer.children().first()); else look(cy.elements(), layer);
  };

  const order = () => nodes.map((_, at) => at).filter((at) => shownAs(at) === at);
  const step = (by) => {
    const all = order();
    const at = chosen === null ? -1 : all.indexOf(chosen);
    const next = at < 0 ? (by > 0 ? 0 : all.length - 1) : Math.min(Math.max(at + by, 0), all.length - 1);
    choose(all[next], { follow: true });
  };
  const zoom = (by) => cy.zoom({ level: cy.zoom() * by, renderedPosition: { x: box.clientWidth / 2, y: box.clientHeight / 2 } });

  const keys = {
    ArrowDown: () => step(1), ArrowRight: () => step(1), ArrowUp: () => step(-1), ArrowLeft: () => step(-1),
    Home: () => step(-nodes.length), End: () => step(nodes.length),
    "+": () => zoom(1.25), "=": () => zoom(1.25), "-": () => zoom(0.8), 0: () => cy.fit(24),
    Escape: () => { const parent = chosen === null ? null : nodes[chosen].parent; if (parent !== null) toggle(parent); },
  };
  const enter = () => { if (chosen !== null && nodes[chosen].kind === "layer") toggle(chosen); };
  keys.Enter = enter;
  keys[" "] = enter;
  box.addEventListener("keydown", (event) => {
    const act = keys[event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act();
  });
  // The wheel scrolls the page until the drawing is in use.
  box.addEventListener("focus", () => cy.userZoomingEnabled(true));
  box.addEventListener("blur", () => cy.userZoomingEnabled(false));
  cy.on("tap", "node", (event) => {
    const at = event.target.data("at");
    box.focus({ preventScroll: true });
    if (nodes[at].kind === "layer" && !opened.has(at)) toggle(at); else choose(at, { follow: false });
    event.stopPropagation();
  });
  cy.on("dbltap", "node.opened", (event) => { toggle(event.target.data("at")); event.stopPropagation(); });
  cy.on("tap", (event) => { if (event.target === cy) box.focus({ preventScroll: true }); });

  for (const at of layers) {
    const button = document.createElement("button");
    button.type = "button";
    button.dataset.at = String(at);
    button.textContent = title(at);
    button.addEventListener("click", () => toggle(at));
    document.getElementById("layers").append(button);
  }
  document.getElementById("closer").addEventListener("click", () => zoom(1.25));
  document.getElementById("farther").addEventListener("click", () => zoom(0.8));
  document.getElementById("whole").addEventListener("click", () => cy.fit(24));

  const legend = document.getElementById("legend");
  for (const kind of new Set(nodes.map((node) => node.kind))) {
    const item = document.createElement("li");
    item.textContent = kind;
    item.className = `kind-${colours[kind] ?? "soft"}`;
    legend.append(item);
  }

  layOut();
  look(cy.elements(), layers.length ? cy.$id(`n${layers[0]}`) : cy.elements());
  document.addEventListener("theme", () => cy.style(style()));
  addEventListener("resize", () => cy.resize());
  requestAnimationFrame(() => requestAnimationFrame(() => { box.dataset.drawn = String(Math.round(performance.now())); }));
  window.drawing = cy;
})();
