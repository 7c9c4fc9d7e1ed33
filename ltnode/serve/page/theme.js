// Runs before the first paint, so that the page does not flash in the other theme.
"use strict";
(() => {
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  let chosen = null; // If storage is switched off, the choice lasts as long as the page.
  try {
    chosen = localStorage.getItem("ltnode-theme");
  } catch {}

  const current = () => (["dark", "light"].includes(chosen) ? chosen : system.matches ? "dark" : "light");
  const opposite = () => (current() === "dark" ? "light" : "dark");

  const apply = () => {
    document.documentElement.dataset.theme = current();
    const button = document.getElementById("theme");
    if (!button) return;
    button.setAttribute("aria-label", `Switch to the ${opposite()} theme`);
    button.querySelector(".theme-word").textContent = opposite() === "dark" ? "Dark" : "Light";
  };

  apply();
  system.addEventListener("change", apply);
  document.addEventListener("DOMContentLoaded", () => {
    apply();
    document.getElementById("theme").addEventListener("click", () => {
      chosen = opposite();
      apply();
      try {
        localStorage.setItem("ltnode-theme", chosen);
      } catch {}
    });
  });
})();
