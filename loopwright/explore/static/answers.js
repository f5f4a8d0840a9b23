// The answer, streamed at the slider's depth; beside it, where the reader asks for it, the same prompt at a second depth.
import { complete, latest } from "./api.js";
import { byId, debounce, el } from "./dom.js";
import { state, update } from "./state.js";

const LENGTH = 40; // tokens of an answer
const PAUSE = 180; // milliseconds a slider must rest before an answer is asked for

function panel(name, guarded, depthOf) {
  const given = el("span", { class: "given" }), made = el("span", { class: "made" });
  const title = el("h3"), cost = el("p", { class: "cost" });
  const root = el("article", { class: `answer ${name}`, "aria-live": "off" }, title, el("p", { class: "said" }, given, made), cost);
  const newest = latest();
  let asked = "";

  const ask = debounce(() => guarded(() => newest(async (signal) => {
    let text = "", first = 0;
    const { prompt } = state, begun = performance.now();
    const usage = await complete({
      model: state.model, prompt: state.prompt, echo: true, max_tokens: LENGTH, temperature: 0, ...(depthOf() > 0 ? { depth: depthOf() } : {}),
    }, (piece) => {
      first ||= performance.now() - begun;
      text += piece;
      const begins = text.startsWith(prompt) ? prompt.length : 0; // some tokenizers write a prompt otherwise
      given.textContent = text.slice(0, begins);
      made.textContent = text.slice(begins);
    }, signal);
    const seconds = (performance.now() - begun) / 1000;
    cost.textContent = usage ? `${usage.completion_tokens} tokens in ${seconds.toFixed(1)} s, first after ${Math.round(first)} ms` : "";
  })), PAUSE);

  return { root, title, refresh(force) {
    const wanted = JSON.stringify([state.model, state.prompt, depthOf()]);
    if (wanted === asked && !force) return;
    asked = wanted;
    ask();
  } };
}

export function answersView(page, { guarded }) {
  const depth = () => (page.card?.looped ? state.depth : 0);
  const one = panel("one", guarded, depth), two = panel("other", guarded, () => state.other);
  const slider = el("input", { type: "range", min: 1, id: "other-depth", "aria-label": "Second depth",
    oninput: () => update({ other: slider.valueAsNumber }) });
  const words = el("span");
  two.title.append(words, slider);
  byId("answers").append(one.root);

  return (changed) => {
    one.title.textContent = page.card.looped ? `Answer after ${state.depth} ${state.depth === 1 ? "step" : "steps"} for each token` : "Answer";
    byId("answers").classList.toggle("two", state.other > 0);
    if (state.other) {
      if (!two.root.isConnected) byId("answers").append(two.root);
      slider.max = page.card.depths.max;
      slider.value = state.other;
      words.textContent = `After ${state.other} ${state.other === 1 ? "step" : "steps"}`;
      two.refresh();
    } else two.root.remove();
    if (page.plain) one.refresh(changed.has("retry"));
  };
}
