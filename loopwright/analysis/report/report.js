"use strict";
// Moves every slider of the page: the cells of the depth it stands at, by hand, by arrow keys, or played from first to last.
for (const box of document.querySelectorAll(".slider")) {
  const { depths, cells } = JSON.parse(box.querySelector("script").textContent);
  const range = box.querySelector("input"), shown = box.querySelector("output"), play = box.querySelector("button");
  const places = box.querySelectorAll("td");
  const marks = { true: "right", false: "wrong", null: "" };
  let timer = null;
  const show = () => {
    const now = Number(range.value);
    shown.textContent = depths[now];
    range.setAttribute("aria-valuetext", `depth ${depths[now]}`);
    cells[now].forEach(([text, right], i) => { places[i].textContent = text; places[i].className = marks[right]; });
  };
  const stop = () => { clearInterval(timer); timer = null; play.textContent = "Play"; };
  range.addEventListener("input", () => { stop(); show(); });
  play.addEventListener("click", () => {
    if (timer !== null) return stop();
    if (Number(range.value) === depths.length - 1) range.value = 0;
    play.textContent = "Stop";
    show();
    timer = setInterval(() => {
      range.value = Number(range.value) + 1;
      show();
      if (Number(range.value) === depths.length - 1) stop();
    }, 450);
  });
  box.classList.add("moves");
  show();
}
