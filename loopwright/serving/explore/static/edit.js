// Edits of the pass: what to change, and what came of it.
import { byId, el, percent, quoted, setOptions, word } from "./dom.js";
import { bar } from "./grid.js";
import { state, update } from "./state.js";

const KINDS = {
  zero: "Switch off a part of a layer", patch: "Put in the state of another prompt", swap: "Swap the states of two steps", noise: "Add noise to the state",
};

export function editView(page) {
  const field = (words, control) => el("label", { class: "field" }, el("span", null, words), control);
  const choice = (id) => el("select", { id });
  const kind = choice("edit-kind"), point = choice("edit-point"), where = choice("edit-where"), step = choice("edit-step"), first = choice("edit-first"), second = choice("edit-second");
  const token = choice("edit-token"), size = el("input", { type: "number", id: "edit-size", min: 0, max: 10, step: "any", value: 0.5, required: true });
  const other = el("input", { type: "text", id: "edit-prompt", value: "The big dog was very sad", required: true });
  const fields = { // made anew for each kind: a control stands in one label at a time
    zero: () => [field("Part", point), field("Layer", where), ...(page.card.looped ? [field("At", step)] : [])],
    patch: () => [field("Other prompt", other), field("After", step), field("Tokens", token)],
    swap: () => [field("State after", first), field("and after", second)],
    noise: () => [field("After", step), field("Size, as a share of the state", size)],
  };
  const more = el("div", { class: "fields" });
  const apply = el("button", { type: "submit", id: "edit-apply" }, "Apply the edit");
  const remove = el("button", { type: "button", class: "quiet", id: "edit-remove", onclick: () => update({ edit: null, shown: "plain" }) }, "Remove it");
  const form = el("form", { class: "edit", onsubmit: (event) => { event.preventDefault(); update({ edit: wanted(), shown: "edited" }); } },
    el("div", { class: "fields" }, field("Edit", kind)), more, el("div", { class: "actions" }, apply, remove));
  const shown = el("div", { class: "choice", role: "radiogroup", "aria-label": "Which pass the page shows" }, ...[["plain", "show the original"], ["edited", "show the edited pass"]].map(
    ([value, words]) => el("button", { type: "button", class: "quiet", role: "radio", "data-value": value, onclick: () => update({ shown: value }) }, words)));
  const verdict = el("p", { class: "verdict", id: "edit-verdict" }), problem = el("p", { class: "problem", role: "alert" });
  const before = el("ol", { class: "bars" }), after = el("ol", { class: "bars" });
  const result = el("div", { class: "result" }, verdict, shown, el("div", { class: "beside" }, el("div", null, el("h3", null, "Before"), before), el("div", { class: "after" }, el("h3", null, "After the edit"), after)));
  byId("edit").append(el("div", { class: "pair" }, el("div", null, form, problem), result));
  kind.addEventListener("change", () => options());
  for (const control of [first, second]) control.addEventListener("change", () => apart());
  const apart = () => second.setCustomValidity(first.value === second.value ? "Choose another step than the first." : "");

  // The fields that go with the kind of edit.
  function options() {
    const { layers, depths, looped } = page.card;
    const kinds = Object.entries(KINDS).filter(([name]) => looped || name === "zero");
    const chosen = kind.value || state.edit?.kind;
    setOptions(kind, kinds, kinds.some(([name]) => name === chosen) ? chosen : "zero");
    const shape = `${kind.value} ${looped}`;
    if (more.dataset.shape !== shape) more.replaceChildren(...fields[kind.value]());
    more.dataset.shape = shape;
    setOptions(point, [["mlp", "MLP"], ["attention", "attention"]], point.value || "mlp");
    const places = ["core", "prelude", "coda"].flatMap((stack) => Array.from({ length: layers[stack] }, (_, i) => [`${stack} ${i}`, looped ? `${i + 1} of the ${stack}` : `${i + 1}`]));
    setOptions(where, places, places.some(([key]) => key === where.value) ? where.value : places[0][0]);
    const steps = Array.from({ length: depths.max }, (_, i) => [String(i), `step ${i + 1}`]);
    const every = kind.value === "patch" ? steps : [["", "every step"], ...steps];
    setOptions(step, every, every.some(([key]) => key === step.value) ? step.value : every[0][0]);
    setOptions(first, steps, first.value || "0");
    setOptions(second, steps, second.value && second.value !== first.value ? second.value : String(depths.max - 1));
    apart();
    setOptions(token, [["", "every token, aligned at the end"], ["chosen", "the chosen token"]], token.value);
  }

  function wanted() {
    const at = step.value === "" ? null : Number(step.value);
    if (kind.value === "zero") {
      const [stack, layer] = where.value.split(" ");
      return { kind: "zero", point: point.value, stack, layer: Number(layer), step: stack === "core" ? at : null };
    }
    if (kind.value === "patch") return { kind: "patch", prompt: other.value, step: at, token: token.value ? page.token : null };
    if (kind.value === "swap") return { kind: "swap", first: Number(first.value), second: Number(second.value) };
    return { kind: "noise", step: at, size: Number(size.value), seed: 0 };
  }

  // A link that holds an edit fills the form.
  function restore(edit) {
    kind.value = edit.kind;
    options();
    const set = (control, value) => { if (value !== undefined) control.value = String(value ?? ""); };
    set(point, edit.point);
    if (edit.stack) set(where, `${edit.stack} ${edit.layer}`);
    set(step, edit.step);
    set(first, edit.first);
    set(second, edit.second);
    apart();
    set(size, edit.size);
    set(other, edit.prompt);
  }

  let seen;
  return (changed) => {
    if (!seen || changed.has("data")) options();
    if (state.edit && JSON.stringify(state.edit) !== seen) restore(state.edit);
    seen = JSON.stringify(state.edit);
    remove.disabled = !state.edit;
    problem.textContent = state.edit ? page.editProblem ?? "" : "";
    for (const button of shown.children) button.setAttribute("aria-checked", button.dataset.value === state.shown);
    const { plain, edited } = page;
    result.classList.toggle("empty", !edited);
    if (!plain) return;
    const t = page.token, s = Math.min(state.depth, plain.tokens.length) - 1;
    const list = (steps) => steps.tokens[s][t].map((id, k) => bar(word(steps.words[id]), steps.probabilities[s][t][k]));
    before.replaceChildren(...list(plain));
    after.replaceChildren(...(edited ? list(edited) : []));
    verdict.textContent = edited ? said(plain, edited, t, s) : "No edit yet. Choose one and apply it; the list shows what the chosen token would say before it.";
  };
}

function said(plain, edited, t, s) {
  const moved = plain.tokens[s].filter((best, i) => best[0] !== edited.tokens[s][i][0]).length;
  const [from, to] = [plain, edited].map((steps) => `${quoted(steps.words[steps.tokens[s][t][0]])} (${percent(steps.probabilities[s][t][0])})`);
  const here = plain.tokens[s][t][0] === edited.tokens[s][t][0] ? `stays ${from.split(" (")[0]}, from ${percent(plain.probabilities[s][t][0])} to ${percent(edited.probabilities[s][t][0])}` : `goes from ${from} to ${to}`;
  return `At step ${s + 1} the edit changes ${moved} of ${plain.prompt.length} predictions. After ${quoted(plain.words[plain.prompt[t]])} the likeliest word ${here}.`;
}
