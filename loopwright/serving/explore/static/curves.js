// A few numbers of one token, step by step, over the faint lines of the other tokens.
import { byId, decimal, el, percent, svg } from "./dom.js";
import { state, update } from "./state.js";

const WIDTH = 560, HEIGHT = 120, LEFT = 72, RIGHT = 12, TOP = 10, BOTTOM = 22;
const MOST_FAINT = 60; // lines of other tokens

const relative = (steps) => steps.change.map((row, s) => row.map((value, t) => (value === null || !steps.size[s][t] ? null : value / steps.size[s][t])));
const CURVES = [
  ["How far the state moved", "‖Δs‖ as a share of its length ‖s‖", relative, percent],
  ["How unsure the prediction is", "entropy, in nats", (steps) => steps.entropy, (value) => `${decimal(value)} nats`],
  ["Chance of leaving the loop here", "exit probability of the learned gate", (steps) => steps.exit, percent],
  ["How far the gate is open", "0 keeps the old state, 1 takes the new one; mean over channels", (steps) => steps.gate, (value) => decimal(value, 3)],
  ["How large the adapter’s diagonals are", "root mean square over maps and rank", (steps) => steps.diagonal, (value) => decimal(value, 3)],
];
const INSTEAD = ["How far from the last step’s prediction", "KL divergence, in nats (this model has no exit gate)", (steps) => steps.divergence, (value) => `${decimal(value, 3)} nats`];

export function curvesView(page) {
  const charts = CURVES.map(() => chart());
  byId("curves").append(...charts.map((one) => one.root));
  return () => {
    const steps = page.steps;
    if (!steps || !page.card.looped) return;
    charts.forEach((one, i) => {
      const curve = i === 2 && !steps.exit ? INSTEAD : CURVES[i];
      one.root.hidden = !curve[2](steps); // of a part that the model has not
      if (!one.root.hidden) one.draw(steps, page.token, curve);
    });
  };
}

function chart() {
  const title = el("h3"), about = el("span", { class: "unit" }), value = el("output");
  const faint = svg("g", { class: "faint" }), line = svg("path", { class: "line" }), dot = svg("circle", { r: 5, class: "now" });
  const cursor = svg("line", { y1: TOP, y2: HEIGHT - BOTTOM, class: "cursor" }), axis = svg("g", { class: "axis" });
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", class: "curve" }, axis, faint, cursor, line, dot);
  const root = el("figure", { class: "figure curve-figure" }, el("div", { class: "curve-head" }, title, value), about, picture);
  let drawn = null, x = null, y = null;

  function build(rows, token, words) {
    const count = rows.length;
    const all = rows.flat().filter((number) => number !== null);
    const top = Math.max(...all, 1e-6);
    x = (s) => LEFT + (count === 1 ? 0.5 : s / (count - 1)) * (WIDTH - LEFT - RIGHT);
    y = (number) => HEIGHT - BOTTOM - (number / top) * (HEIGHT - TOP - BOTTOM);
    const trace = (t) => rows.map((row, s) => (row[t] === null ? "" : `${s && rows[s - 1][t] !== null ? "L" : "M"}${x(s).toFixed(1)} ${y(row[t]).toFixed(1)}`)).join("");
    const others = rows[0].map((_, t) => t).filter((t) => t !== token).slice(-MOST_FAINT);
    faint.replaceChildren(svg("path", { d: others.map(trace).join("") }));
    line.setAttribute("d", trace(token));
    const text = (at, down, anchor, said) => svg("text", { x: at, y: down, "text-anchor": anchor }, said);
    axis.replaceChildren(
      svg("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: y(0), y2: y(0) }),
      text(LEFT - 8, y(0) + 4, "end", "0"), text(LEFT - 8, TOP + 8, "end", words === percent ? percent(top) : `${Number(top.toPrecision(2))}`),
      text(x(0), HEIGHT - 4, count > 1 ? "start" : "middle", count > 1 ? "step 1" : "step"), ...(count > 1 ? [text(x(count - 1), HEIGHT - 4, "end", `${count}`)] : []),
    );
  }

  picture.addEventListener("click", (event) => {
    const box = picture.getBoundingClientRect(), count = drawn.rows.length;
    const share = ((event.clientX - box.left) / box.width * WIDTH - LEFT) / (WIDTH - LEFT - RIGHT);
    update({ depth: Math.min(Math.max(Math.round(share * (count - 1)) + 1, 1), count) });
  });

  return { root, draw(steps, token, [name, unit, read, words]) {
    if (drawn?.steps !== steps || drawn.token !== token) {
      drawn = { steps, token, rows: read(steps) };
      build(drawn.rows, token, words);
    }
    const s = Math.min(state.depth, drawn.rows.length) - 1, number = drawn.rows[s][token];
    title.textContent = name;
    about.textContent = unit;
    value.textContent = `${words(number)} at step ${s + 1}`;
    cursor.setAttribute("x1", x(s));
    cursor.setAttribute("x2", x(s));
    dot.style.transform = `translate(${x(s)}px, ${y(number ?? 0)}px)`;
    picture.setAttribute("aria-label", `${name}: ${drawn.rows.map((row, i) => `step ${i + 1} ${words(row[token])}`).join(", ")}`);
  } };
}
