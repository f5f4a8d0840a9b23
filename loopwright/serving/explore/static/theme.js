// Dark or light: the system's choice until the reader makes one. Runs before the first paint, so that nothing flashes.
(() => {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const stored = () => { try { return localStorage.getItem("loopwright-theme"); } catch { return null; } };
  const apply = () => {
    const dark = (stored() ?? (system.matches ? "dark" : "light")) === "dark";
    root.dataset.theme = dark ? "dark" : "light";
    const button = document.getElementById("theme");
    if (button) button.textContent = dark ? "Light" : "Dark";
    dispatchEvent(new Event("themechange"));
  };
  apply();
  system.addEventListener("change", apply);
  addEventListener("DOMContentLoaded", () => {
    apply();
    document.getElementById("theme").addEventListener("click", () => {
      try { localStorage.setItem("loopwright-theme", root.dataset.theme === "dark" ? "light" : "dark"); } catch { /* private window */ }
      apply();
    });
  });
})();
