// Attention of one head at the slider's step: over the text for the chosen token, as a map for all, with the sink by its name.
import { latest, post } from "./api.js";
import { byId, debounce, el, percent, quoted, setOptions, word } from "./dom.js";
import { state, update } from "./state.js";

const CELL = 24, MOST_SIDE = 560, NAMES_WIDE = 72, LEGIBLE = 13; // pixels: of a cell and of a map at most, of its names, of a cell that has one
const NAMES = { prelude: "prelude (runs once)", core: "core (looped)", coda: "coda (runs once)" };

export function attentionView(page, { guarded }) {
  const stack = el("select", { id: "stack" }), layer = el("select", { id: "layer" });
  const heads = el("div", { class: "heads", role: "radiogroup", "aria-label": "Head" });
  const text = el("p", { class: "looked", role: "group", "aria-label": "Attention over the prompt" });
  const verdict = el("p", { class: "verdict" }), where = el("p", { class: "caption" });
  const canvas = el("canvas", { role: "img" });
  stack.addEventListener("change", () => update({ stack: stack.value, layer: 0 }));
  layer.addEventListener("change", () => update({ layer: Number(layer.value) }));
  byId("attention").append(
    el("div", { class: "controls" }, el("label", { class: "inline" }, "Stack", stack), el("label", { class: "inline" }, "Layer", layer),
      el("span", { class: "inline" }, "Head"), heads),
    el("div", { class: "pair" }, el("div", null, verdict, text, where), el("figure", { class: "figure map" }, canvas,
      el("figcaption", { class: "caption" }, "Each row is a token, each column a token it looks at. Click a row to choose it."))),
  );
  const newest = latest();
  let asked = "", data = null, cell = CELL, margin = 0;

  const ask = debounce(() => guarded(async () => {
    const found = await newest((signal) => post("/explore/attention", {
      model: state.model, prompt: state.prompt, depth: page.card.depths.max, stack: state.stack,
      layer: Math.min(state.layer, page.card.layers[state.stack] - 1), head: Math.min(state.head, page.card.heads - 1),
      edit: edit(),
    }, signal));
    if (!found) return;
    data = found;
    draw();
  }), 60);

  // An edit that was refused has no pass, and so no attention.
  const edit = () => (state.shown !== "plain" && page.edited ? state.edit : null);
  const step = () => Math.min(state.depth, data.maps.length) - 1;
  const row = () => Math.min(page.token, data.prompt.length - 1);

  function draw() {
    if (!data || !page.plain) return; // another model is being opened
    const map = data.maps[step()], sinks = data.sinks[step()], t = row();
    drawHeads(sinks);
    const sink = sinks[Math.min(state.head, sinks.length - 1)], name = quoted(data.words[data.prompt[sink.token]]);
    const into = `${percent(sink.share)} of all attention goes to token ${sink.token + 1}, ${name}`;
    verdict.replaceChildren(el("strong", null, sink.share > data.sink_above ? `A sink: ${name}.` : "No sink."), ` In this head ${into}.`);
    text.replaceChildren(...data.prompt.map((token, j) => chip(data.words[token], map[t][j], j === t)));
    const shown = data.prompt.length < page.plain.prompt.length ? ` The first ${data.prompt.length} tokens of the prompt are shown.` : "";
    const best = map[t].map((share, j) => [share, j]).sort((a, b) => b[0] - a[0]).slice(0, 3);
    where.textContent = `${quoted(data.words[data.prompt[t]])} looks at ${best.map(([share, j]) => `${quoted(data.words[data.prompt[j]])} (${percent(share)})`).join(", ")}.${shown}`;
    drawMap(map, t);
    canvas.setAttribute("aria-label", `Attention map of head ${state.head + 1}. ${into}. ${where.textContent}`);
  }

  function chip(words, share, own) {
    const node = el("span", { class: own ? "chip own" : "chip", title: share === undefined ? "later: not seen" : percent(share) }, words.replaceAll("\n", "↵"));
    node.style.setProperty("--heat", Math.sqrt(share ?? 0)); // as in the map
    if (share === undefined) node.classList.add("later");
    return node;
  }

  function drawHeads(sinks) {
    if (heads.childElementCount !== sinks.length) {
      heads.replaceChildren(...sinks.map((_, h) => el("button", { type: "button", class: "quiet", role: "radio", onclick: () => update({ head: h }) }, `${h + 1}`)));
    }
    sinks.forEach((sink, h) => {
      const button = heads.children[h];
      button.setAttribute("aria-checked", h === state.head);
      button.setAttribute("aria-label", `Head ${h + 1}: ${percent(sink.share)} into token ${sink.token + 1}`);
      button.title = `${percent(sink.share)} into token ${sink.token + 1}, ${quoted(data.words[data.prompt[sink.token]])}`;
      button.style.setProperty("--share", sink.share);
    });
  }

  function drawMap(map, t) {
    const count = map.length, room = Math.min(canvas.parentElement.clientWidth || MOST_SIDE, MOST_SIDE);
    const fitting = (width) => Math.max(Math.min(CELL, Math.floor(width / count)), 2);
    margin = fitting(room - NAMES_WIDE) >= LEGIBLE ? NAMES_WIDE : 0; // tokens beside and above, where they can be read
    cell = fitting(room - margin);
    const side = cell * count, style = getComputedStyle(document.documentElement), ratio = devicePixelRatio || 1;
    canvas.width = canvas.height = (margin + side) * ratio;
    canvas.style.width = `${margin + side}px`;
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    if (margin) drawNames(pen, t, style);
    pen.translate(margin, margin);
    pen.fillStyle = style.getPropertyValue("--surface");
    pen.fillRect(0, 0, side, side);
    pen.fillStyle = style.getPropertyValue("--accent");
    map.forEach((line, i) => line.forEach((share, j) => {
      pen.globalAlpha = Math.sqrt(share); // small shares stay visible
      pen.fillRect(j * cell, i * cell, cell - (cell > 6 ? 1 : 0), cell - (cell > 6 ? 1 : 0));
    }));
    pen.globalAlpha = 1;
    pen.strokeStyle = style.getPropertyValue("--ink");
    pen.lineWidth = 1.5;
    pen.strokeRect(0.75, t * cell + 0.25, (t + 1) * cell - 1.5, cell - 0.5);
  }

  function drawNames(pen, t, style) {
    pen.font = `${Math.min(13, cell - 2)}px ${style.getPropertyValue("--sans")}`;
    pen.textBaseline = "middle";
    data.prompt.forEach((token, i) => {
      let name = word(data.words[token]);
      while (name.length > 1 && pen.measureText(name).width > margin - 8) name = name.slice(0, -1);
      pen.fillStyle = style.getPropertyValue(i === t ? "--ink" : "--quiet");
      pen.textAlign = "right";
      pen.fillText(name, margin - 6, margin + (i + 0.5) * cell);
      pen.save();
      pen.translate(margin + (i + 0.5) * cell, margin - 6);
      pen.rotate(-Math.PI / 2);
      pen.textAlign = "left";
      pen.fillText(name, 0, 0);
      pen.restore();
    });
  }

  // The row and the column of the map under the pointer; outside of it numbers that no token has.
  function under(event) {
    const box = canvas.getBoundingClientRect(), scale = (margin + cell * data.prompt.length) / box.width;
    return [event.clientY - box.top, event.clientX - box.left].map((at) => Math.floor((at * scale - margin) / cell));
  }

  canvas.addEventListener("click", (event) => {
    const [i] = under(event);
    if (data.prompt[i] !== undefined) update({ token: i });
  });
  canvas.addEventListener("mousemove", (event) => {
    const [i, j] = under(event), share = data.maps[step()][i]?.[j];
    canvas.title = share === undefined ? "" : `${word(data.words[data.prompt[i]])} looks at ${word(data.words[data.prompt[j]])}: ${percent(share)}`;
  });
  addEventListener("resize", debounce(draw, 100));

  return () => {
    const { layers } = page.card;
    setOptions(stack, Object.keys(NAMES).filter((name) => layers[name]).map((name) => [name, page.card.looped ? NAMES[name] : "all layers"]), state.stack);
    setOptions(layer, Array.from({ length: layers[state.stack] ?? 0 }, (_, i) => [String(i), `${i + 1}`]), Math.min(state.layer, (layers[state.stack] ?? 1) - 1));
    if (!page.plain || !layers[state.stack]) return;
    const wanted = JSON.stringify([state.model, page.plain.prompt, state.stack, state.layer, state.head, edit()]);
    if (wanted !== asked) {
      asked = wanted;
      ask();
    } else draw();
  };
}
