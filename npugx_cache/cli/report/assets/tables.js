// Sorts tables by the buttons in their heads, and filters them by the text of a field.
"use strict";
for (const table of document.querySelectorAll("table[id]")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, at) => {
    head.querySelector("button")?.addEventListener("click", () => {
      const numbers = [...table.tBodies[0].rows].every((row) => !Number.isNaN(Number(value(row.cells[at]))));
      const before = head.getAttribute("aria-sort");
      const descending = before ? before === "ascending" : numbers;
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", descending ? "descending" : "ascending");
      const rows = [...table.tBodies[0].rows].sort((a, b) => {
        const [x, y] = [value(a.cells[at]), value(b.cells[at])];
        const order = numbers ? Number(x) - Number(y) : x.localeCompare(y);
        return descending ? -order : order;
      });
      table.tBodies[0].append(...rows);
    });
  });
}

function value(cell) {
  return cell.dataset.value ?? cell.textContent.trim();
}

for (const field of document.querySelectorAll("input[data-filters]")) {
  const rows = [...document.getElementById(field.dataset.filters).tBodies[0].rows];
  const texts = rows.map((row) => row.textContent.toLowerCase());
  const count = document.querySelector(`[data-counts="${field.dataset.filters}"]`);
  const apply = () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    rows.forEach((row, at) => {
      row.hidden = !words.every((word) => texts[at].includes(word));
      shown += row.hidden ? 0 : 1;
    });
    count.textContent = words.length ? `${shown} of ${rows.length}` : "";
  };
  field.addEventListener("input", apply);
  field.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { field.value = ""; apply(); }
  });
  apply();
}

document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, textarea, select");
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
    const field = document.querySelector("input[data-filters]");
    if (field) { event.preventDefault(); field.focus(); }
  }
});
