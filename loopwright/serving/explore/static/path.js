// The path of one token's state in the two directions in which it moves most, walked as far as the slider stands.
import { byId, el, percent, quoted, svg } from "./dom.js";
import { state } from "./state.js";

const WIDTH = 560, HEIGHT = 400, EDGE = 36;
const RESTS = 0.01; // ‖Δs‖ / ‖s‖ of the last step, up to which a state is said to rest
const MEANS = { // by the direction of the state; its length may still change
  "fixed point": (found, moved) => moved <= RESTS
    ? ["At rest (a fixed point)", "Near the end, further steps hardly change the state."]
    : ["Its direction is at rest", `Its length is not: the last step shown still moves the state by ${percent(moved)} of its length.`],
  orbit: (found) => ["Going round (an orbit)", `The state comes back about every ${found.period} steps.`],
  slider: () => ["Still moving (a “slider”)", "The state drifts in one direction: it has not come to rest within these steps."],
  unknown: () => ["No clear pattern", "The state neither rests, nor circles, nor slides steadily within these steps."],
};

export function pathView(page) {
  const lines = svg("g"), dots = svg("g"), marks = svg("g");
  const now = svg("circle", { r: 8, class: "now" }), tag = svg("text", { class: "tag" });
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", class: "path" }, lines, dots, marks, now, tag);
  const name = el("strong", { id: "limit" }), meaning = el("span"), explained = el("p", { class: "caption" });
  const root = el("figure", { class: "figure" }, el("p", { class: "verdict" }, name, " ", meaning), picture, explained);
  byId("path").append(root);
  let drawn = null, points = [];

  function build(steps, token) {
    const raw = steps.path.coordinates[token];
    const [xs, ys] = [0, 1].map((axis) => raw.map((point) => point[axis]));
    const middle = [xs, ys].map((values) => (Math.max(...values) + Math.min(...values)) / 2);
    const spread = [xs, ys].map((values) => Math.max(...values) - Math.min(...values));
    const scale = Math.min((WIDTH - 2 * EDGE) / (spread[0] || 1), (HEIGHT - 2 * EDGE) / (spread[1] || 1));
    points = raw.map(([x, y]) => [WIDTH / 2 + (x - middle[0]) * scale, HEIGHT / 2 - (y - middle[1]) * scale]);
    lines.replaceChildren(...points.slice(1).map(([x, y], i) => svg("line", { x1: points[i][0], y1: points[i][1], x2: x, y2: y })));
    dots.replaceChildren(...points.map(([x, y], i) => svg("circle", { cx: x, cy: y, r: i ? 4 : 5, class: i ? "" : "start" },
      svg("title", null, i ? `after step ${i}` : "before the first step"))));
    const last = points.length - 1;
    marks.replaceChildren(label(0, "start"), label(last, `step ${last}`));
  }

  function label(i, words) {
    // below the point or above it, on the side where its neighbour is not, so that mark and line stay free
    const [x, y] = points[i], below = y >= points[i ? i - 1 : 1][1] ? y + 30 < HEIGHT : y < 40;
    const anchor = x > WIDTH - 90 ? "end" : x < 90 ? "start" : "middle";
    return svg("text", { x, y: below ? y + 30 : y - 18, "text-anchor": anchor }, words);
  }

  function walk() {
    const at = Math.min(state.depth, points.length - 1);
    [...lines.children].forEach((line, i) => line.setAttribute("class", i < at ? "walked" : ""));
    [...dots.children].forEach((dot, i) => dot.classList.toggle("walked", i <= at));
    const [x, y] = points[at];
    now.style.transform = `translate(${x}px, ${y}px)`;
    tag.textContent = at === points.length - 1 ? "" : `step ${at}`;
    const left = x > WIDTH / 2;
    tag.setAttribute("text-anchor", left ? "end" : "start");
    tag.setAttribute("x", x + (left ? -14 : 14));
    tag.setAttribute("y", y + 5);
  }

  function moved(steps) {
    const last = steps.change.length - 1;
    return steps.change[last][page.token] / steps.size[last][page.token];
  }

  return () => {
    const steps = page.steps;
    byId("motion").hidden = !page.card.looped;
    if (!steps || !page.card.looped) return;
    if (!steps.path) {
      name.textContent = "Not drawn.";
      meaning.textContent = "A state of this pass is not finite.";
      return;
    }
    const key = `${page.token}`;
    if (drawn?.steps !== steps || drawn.key !== key) {
      drawn = { steps, key };
      build(steps, page.token);
    }
    walk();
    const found = steps.settles?.[page.token];
    const [title, words] = found ? MEANS[found.limit](found, moved(steps)) : ["Too few steps", "Five steps or more are needed to say where the state settles."];
    name.textContent = `${title}.`;
    meaning.textContent = words;
    const shares = steps.path.explained[page.token];
    const about = `The state of ${quoted(steps.words[steps.prompt[page.token]])} from its start through ${steps.tokens.length} steps.`;
    explained.textContent = `${about} The two directions hold ${percent(shares[0] + shares[1])} of its movement.`;
    picture.setAttribute("aria-label", `${about} ${title}. ${words}`);
  };
}
