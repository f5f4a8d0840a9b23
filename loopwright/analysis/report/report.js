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
// Reads lines out where the pointer is: the value of each line of the panel at that x. Where the axes lie is in the drawing.
for (const figure of document.querySelectorAll("figure")) {
  const drawing = figure.querySelector("svg[data-axes]");
  if (!drawing) continue;
  const frames = JSON.parse(drawing.dataset.axes);
  const lines = [...drawing.querySelectorAll("[data-line]")].flatMap((group) => {
    const path = group.querySelector("path"), [place, ...name] = group.dataset.line.split(":");
    if (!path) return [];
    const points = [...path.getAttribute("d").matchAll(/(-?[\d.]+) (-?[\d.]+)/g)].map(([, x, y]) => [Number(x), Number(y)]);
    return [{ place: Number(place), name: name.join(":"), points, colour: path.style.stroke }];
  });
  const value = (f, [scale, low, high]) => (scale === "log" ? low * (high / low) ** f : low + f * (high - low));
  const share = (v, [scale, low, high]) => (scale === "log" ? Math.log(v / low) / Math.log(high / low) : (v - low) / (high - low));
  const height = (points, x) => {
    const next = points.findIndex((point) => point[0] >= x - 1e-6);
    if (next < 0 || points[0][0] > x + 1e-6) return null;
    const [b, a] = [points[next], points[Math.max(next - 1, 0)]];
    return b[0] === a[0] ? b[1] : a[1] + ((x - a[0]) / (b[0] - a[0])) * (b[1] - a[1]);
  };
  const short = (v) => String(Number(v.toPrecision(3)));
  const rule = document.createElementNS("http://www.w3.org/2000/svg", "line");
  rule.setAttribute("class", "rule");
  const readout = document.createElement("div");
  readout.className = "readout";
  readout.setAttribute("aria-hidden", "true");
  readout.hidden = true;
  const hide = () => { readout.hidden = true; rule.remove(); };
  const show = (event) => {
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(drawing.getScreenCTM().inverse());
    const place = frames.findIndex(([[l, t, r, b]]) => at.x >= l && at.x <= r && at.y >= t && at.y <= b);
    if (place < 0) return hide();
    const [[left, top, right, bottom], horizontal, vertical, whole] = frames[place];
    let x = value((at.x - left) / (right - left), horizontal);
    x = whole ? Math.round(x) : x;
    const across = left + share(x, horizontal) * (right - left);
    const found = lines.filter((line) => line.place === place).map((line) => ({ ...line, y: height(line.points, across) }))
      .filter((line) => line.y !== null).sort((a, b) => Math.abs(a.y - at.y) - Math.abs(b.y - at.y)).slice(0, 6).sort((a, b) => a.y - b.y);
    if (!found.length) return hide();
    readout.replaceChildren();
    const head = readout.appendChild(document.createElement("b"));
    head.textContent = `${horizontal[3]} ${whole ? x : short(x)}`;
    for (const line of found) {
      const row = readout.appendChild(document.createElement("div"));
      const dot = row.appendChild(document.createElement("i"));
      dot.style.background = line.colour;
      row.append(`${line.name}: ${short(value((bottom - line.y) / (bottom - top), vertical))}`);
    }
    for (const [side, end] of Object.entries({ x1: across, x2: across, y1: top, y2: bottom })) rule.setAttribute(side, end);
    drawing.append(rule);
    readout.hidden = false;
    const box = figure.getBoundingClientRect();
    const beside = event.clientX - box.left + 16;
    readout.style.left = `${Math.max(4, beside + readout.offsetWidth > box.width ? beside - readout.offsetWidth - 32 : beside)}px`;
    readout.style.top = `${event.clientY - box.top + 12}px`;
  };
  figure.append(readout);
  drawing.addEventListener("pointermove", show);
  drawing.addEventListener("pointerdown", show);
  drawing.addEventListener("pointerleave", hide);
}
