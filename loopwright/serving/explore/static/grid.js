// Tokens × steps: what each step would say next, how sure it is, and where a token would leave the loop.
import { byId, decimal, el, percent, quoted, setOptions, word } from "./dom.js";
import { state, update } from "./state.js";

const FAR = 3; // nats of KL that count as quite another prediction
const RULES = {
  gate: ["the exit gate’s total reaches", 0.5], act: ["the halting values leave less than", 0.01], change: ["the state moves by less than", 0.05],
  divergence: ["the prediction changes by less than (nats)", 0.01], entropy: ["the entropy is below (nats)", 0.5],
  stable: ["the same word came this many times", 2],
};

export function gridView(page) {
  const table = el("table", { class: "grid", role: "grid", "aria-label": "Predictions by token and step" });
  const scroll = el("div", { class: "scroll" }, table);
  const detail = detailPanel(page);
  const controls = controlsOf(page);
  byId("grid").append(controls.root, el("div", { class: "grid-and-detail" }, scroll, detail.root));
  let cells = [], drawn = null, focus = null;

  function build(steps) {
    const count = steps.tokens.length;
    table.style.setProperty("--columns", count);
    table.classList.toggle("one", !page.card.looped);
    const head = el("tr", null, el("th", { scope: "col" }, "after the token"),
      ...Array.from({ length: count }, (_, s) => el("th", { scope: "col", "data-step": s + 1 }, page.card.looped ? `${s + 1}` : "next")));
    cells = steps.prompt.map((token, t) => Array.from({ length: count }, (_, s) => cell(steps, t, s)));
    const rows = cells.map((row, t) => el("tr", null, el("th", { scope: "row" }, word(steps.words[steps.prompt[t]])), ...row));
    table.replaceChildren(el("thead", null, head), el("tbody", null, ...rows));
  }

  function cell(steps, t, s) {
    const text = word(steps.words[steps.tokens[s][t][0]]);
    return el("td", { class: "cell", role: "gridcell", tabindex: -1, "data-t": t, "data-s": s }, text);
  }

  function paint(steps) {
    for (const row of cells) for (const node of row) {
      const t = Number(node.dataset.t), s = Number(node.dataset.s);
      const chance = steps.probabilities[s][t][0];
      const heat = state.colour === "probability" ? chance : Math.min((steps.divergence[s][t] ?? FAR) / FAR, 1);
      node.style.setProperty("--heat", (heat ?? 0).toFixed(3));
      const leaves = page.card.looped && steps.leaves?.[t] === s + 1 && s + 1 < steps.tokens.length; // the last step is everybody's end
      const right = steps.prompt[t + 1] === steps.tokens[s][t][0];
      const moved = page.edited && state.shown !== "plain" && page.plain.tokens[s][t][0] !== steps.tokens[s][t][0];
      node.classList.toggle("leaves", leaves);
      node.classList.toggle("right", right);
      node.classList.toggle("moved", Boolean(moved));
      node.setAttribute("aria-label", `after ${quoted(steps.words[steps.prompt[t]])}, step ${s + 1}: ${quoted(steps.words[steps.tokens[s][t][0]])}, ${percent(chance)}${leaves ? ", leaves the loop here" : ""}${moved ? ", changed by the edit" : ""}`);
    }
  }

  function mark() {
    for (const node of table.querySelectorAll(".now")) node.classList.remove("now");
    for (const node of table.querySelectorAll(".second")) node.classList.remove("second");
    for (const node of table.querySelectorAll(".chosen")) node.classList.remove("chosen");
    const column = (depth, name) => {
      for (const row of cells) row[depth - 1]?.classList.add(name);
      table.tHead?.rows[0].cells[depth]?.classList.add(name);
    };
    column(state.depth, "now");
    if (state.other) column(state.other, "second");
    table.tBodies[0]?.rows[page.token]?.classList.add("chosen");
    const at = cells[page.token]?.[state.depth - 1];
    for (const node of table.querySelectorAll('.cell[tabindex="0"]')) node.tabIndex = -1;
    if (at) at.tabIndex = 0;
    detail.show(page.token, state.depth - 1);
  }

  // Keeps the chosen row in sight inside the table, without moving the page.
  function reveal() {
    const row = table.tBodies[0]?.rows[page.token];
    if (!row) return;
    const low = row.offsetTop + row.offsetHeight - scroll.clientHeight, high = row.offsetTop - table.tHead.offsetHeight;
    if (scroll.scrollTop < low) scroll.scrollTop = low;
    else if (scroll.scrollTop > high) scroll.scrollTop = high;
    const cell = row.cells[state.depth], names = row.cells[0].offsetWidth;
    if (!cell) return;
    const right = cell.offsetLeft + cell.offsetWidth - scroll.clientWidth, left = cell.offsetLeft - names;
    if (scroll.scrollLeft < right) scroll.scrollLeft = right;
    else if (scroll.scrollLeft > left) scroll.scrollLeft = left;
  }

  const place = (event) => {
    const node = event.target.closest(".cell");
    return node && [Number(node.dataset.t), Number(node.dataset.s)];
  };
  table.addEventListener("mouseover", (event) => { const at = place(event); if (at) detail.show(...at); });
  table.addEventListener("mouseleave", () => detail.show(page.token, state.depth - 1));
  table.addEventListener("focusin", (event) => { const at = place(event); if (at) detail.show(...at); });
  table.addEventListener("click", (event) => { const at = place(event); if (at) choose(...at); });
  table.addEventListener("keydown", (event) => {
    const at = place(event);
    if (!at) return;
    const [t, s] = at, last = cells[0].length - 1;
    const next = { ArrowUp: [t - 1, s], ArrowDown: [t + 1, s], ArrowLeft: [t, s - 1], ArrowRight: [t, s + 1], Home: [t, 0], End: [t, last] }[event.key];
    if (!next || !cells[next[0]]?.[next[1]]) return;
    event.preventDefault();
    focus = next;
    choose(...next);
    cells[next[0]][next[1]].focus({ preventScroll: true });
    cells[next[0]][next[1]].scrollIntoView({ block: "nearest", inline: "nearest" });
  });
  const choose = (t, s) => update({ token: t, ...(page.card.looped ? { depth: s + 1 } : {}) });

  return (changed) => {
    controls.draw();
    const steps = page.steps;
    if (!steps) return;
    if (drawn !== steps) {
      drawn = steps;
      build(steps);
      paint(steps);
      focus = null;
      requestAnimationFrame(reveal);
    } else if (changed.has("colour") || changed.has("shown")) paint(steps);
    mark();
    if ((changed.has("token") || changed.has("depth")) && !focus) reveal();
  };
}

function controlsOf(page) {
  const pick = (key, value, words) => el("button", { type: "button", class: "quiet", role: "radio", "data-value": value, onclick: () => update({ [key]: value }) }, words);
  const colours = el("div", { class: "choice", role: "radiogroup", "aria-label": "Colour of the cells" },
    pick("colour", "probability", "by probability"), pick("colour", "divergence", "by distance to the last step"));
  const kind = el("select", { "aria-label": "Exit rule" }), limit = el("input", { type: "number", step: "any", min: 0, "aria-label": "Limit of the exit rule" });
  const change = () => {
    if (!limit.reportValidity()) return;
    if (limit.value === "") limit.value = RULES[kind.value][1];
    update({ exit: `${kind.value}:${limit.value}` });
  };
  kind.addEventListener("change", () => update({ exit: `${kind.value}:${RULES[kind.value][1]}` }));
  limit.addEventListener("change", change);
  const exits = el("label", { class: "inline exits" }, el("span", { class: "dot", "aria-hidden": "true" }), "leaves the loop when", kind, limit);
  const low = el("span"), high = el("span"), said = el("span", { class: "note" });
  const legend = el("p", { class: "legend" }, low, el("span", { class: "ramp", "aria-hidden": "true" }), high, el("span", { class: "note" }, el("b", null, "bold"), ": what the prompt goes on with"), said);
  const label = el("span", { class: "label" }, "Colour");
  const root = el("div", { class: "controls" }, label, colours, exits, legend);
  return { root, draw() {
    for (const button of colours.children) button.setAttribute("aria-checked", button.dataset.value === state.colour);
    const probability = state.colour === "probability";
    low.textContent = probability ? "unlikely" : "as the last step says";
    high.textContent = probability ? "certain" : `${FAR} nats away or more`;
    label.hidden = colours.hidden = exits.hidden = said.hidden = !page.card.looped;
    said.textContent = page.steps ? leaving(page.steps) : "";
    const [name, number] = state.exit.split(":");
    const offered = page.card.exits.filter((rule) => RULES[rule]);
    setOptions(kind, offered.map((rule) => [rule, RULES[rule][0]]), name);
    limit.min = name === "stable" ? 1 : 0;
    limit.step = name === "stable" ? 1 : "any";
    if (document.activeElement !== limit) limit.value = number ?? RULES[name]?.[1] ?? "";
  } };
}

// How many tokens the exit rule lets go before the last step, and after how many steps.
function leaving({ leaves, tokens }) {
  const early = leaves?.filter((step) => step < tokens.length) ?? [];
  if (!early.length) return leaves ? "no token leaves before the last step" : "";
  const mean = early.reduce((sum, step) => sum + step, 0) / early.length;
  return `${early.length} of ${leaves.length} tokens leave early, after ${decimal(mean, 1)} steps on average`;
}

function detailPanel(page) {
  const title = el("h3"), list = el("ol", { class: "bars" }), facts = el("dl", { class: "numbers" });
  const root = el("div", { class: "detail", "aria-live": "polite" }, title, list, facts);
  return { root, show(t, s) {
    const steps = page.steps;
    if (!steps?.tokens[s]?.[t]) return;
    title.textContent = page.card.looped ? `After ${quoted(steps.words[steps.prompt[t]])}, at step ${s + 1}` : `After ${quoted(steps.words[steps.prompt[t]])}`;
    list.replaceChildren(...steps.tokens[s][t].map((token, k) => bar(word(steps.words[token]), steps.probabilities[s][t][k])));
    const follows = steps.follows[s]?.[t];
    const rows = [["uncertainty (entropy)", `${decimal(steps.entropy[s][t])} nats`]];
    if (page.card.looped) rows.push(["distance to the last step (KL)", `${decimal(steps.divergence[s][t], 3)} nats`]);
    if (follows !== undefined) rows.push([`chance of ${quoted(steps.words[steps.prompt[t + 1]])}, which follows`, percent(follows)]);
    if (steps.exit) rows.push(["chance of leaving at this step", percent(steps.exit[s][t])]);
    if (steps.shift) rows.push(["moved by the edit (KL)", `${decimal(steps.shift[s][t], 3)} nats`]);
    facts.replaceChildren(...rows.flatMap(([name, value]) => [el("dt", null, name), el("dd", null, value)]));
  } };
}

// One alternative: the word, a bar and the probability.
export function bar(text, share) {
  const line = el("span", { class: "bar", "aria-hidden": "true" });
  line.style.setProperty("--share", share ?? 0);
  return el("li", null, el("span", { class: "word" }, text), line, el("span", { class: "share" }, percent(share)));
}
