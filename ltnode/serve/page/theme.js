// Runs before the first paint, so that a chosen theme does not flash the other one.
"use strict";
(() => {
  const root = document.documentElement;
  const system = window.matchMedia("(prefers-color-scheme: dark)");

  const read = () => {
    try {
      return localStorage.getItem("ltnode-theme");
    } catch {
      return null; // storage may be switched off: the choice then lasts as long as the page
    }
  };
  const write = (theme) => {
    try {
      localStorage.setItem("ltnode-theme", theme);
    } catch {
      // as above
    }
  };

  let chosen = read();
  const current = () => (chosen === "dark" || chosen === "light" ? chosen : system.matches ? "dark" : "light");

  const apply = () => {
    root.dataset.theme = current();
    const button = document.getElementById("theme");
    if (button) {
      const other = current() === "dark" ? "light" : "dark";
      button.setAttribute("aria-label", `Switch to the ${other} theme`);
      button.querySelector(".theme-word").textContent = other === "dark" ? "Dark" : "Light";
    }
  };

  apply();
  system.addEventListener("change", apply);
  document.addEventListener("DOMContentLoaded", () => {
    apply();
    document.getElementById("theme").addEventListener("click", () => {
      chosen = current() === "dark" ? "light" : "dark";
      write(chosen);
      apply();
    });
  });
})();
