// Chooses light or dark before anything is shown: what the reader chose last, or what the system says.
"use strict";
(() => {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const stored = () => {
    try { return localStorage.getItem("npugx-cache-theme"); } catch { return null; }
  };
  const apply = () => {
    const theme = stored() ?? (system.matches ? "dark" : "light");
    document.documentElement.dataset.theme = theme;
    const button = document.getElementById("theme");
    if (button) button.setAttribute("aria-pressed", String(theme === "dark"));
    document.dispatchEvent(new Event("theme"));
  };
  system.addEventListener("change", apply);
  apply();
  document.addEventListener("DOMContentLoaded", () => {
    apply();
    document.getElementById("theme").addEventListener("click", () => {
      const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
      try { localStorage.setItem("npugx-cache-theme", theme); } catch { /* only this page then */ }
      document.documentElement.dataset.theme = theme;
      document.getElementById("theme").setAttribute("aria-pressed", String(theme === "dark"));
      document.dispatchEvent(new Event("theme"));
    });
  });
})();

// The colour that a variable of the style sheet stands for now, for what is drawn on a canvas.
function colour(name) {
  const probe = document.createElement("span");
  probe.style.color = `var(--${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}
