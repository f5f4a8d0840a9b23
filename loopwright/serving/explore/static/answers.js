// The answer, streamed at the slider's depth; beside it, where the reader asks for it, the same prompt at a second depth.
import { complete, latest } from "./api.js";
import { byId, debounce, el } from "./dom.js";
import { state, update } from "./state.js";

const LENGTH = 40; // tokens of an answer
const PAUSE = 180; // milliseconds a slider must rest before an answer is asked for

// How long an answer may be. Where 40 tokens may not fit after the prompt (a token has a byte at least), the server chooses what does;
// it does as well while another model is being opened, which has no card yet.
function longest(card) {
  const room = card?.max_model_len - new TextEncoder().encode(state.prompt).length - 2;
  return room >= LENGTH ? { max_tokens: LENGTH } : {};
}

function panel(name, page, guarded, depthOf, onText) {
  const given = el("span", { class: "given" }), made = el("span", { class: "made" });
  const title = el("h3"), cost = el("p", { class: "cost" });
  const root = el("article", { class: `answer ${name}`, "aria-live": "off" }, title, el("p", { class: "said" }, given, made), cost);
  const newest = latest();
  let asked = "", answer = "";

  const ask = debounce(() => guarded(() => newest(async (signal) => {
    let text = "", first = 0;
    cost.textContent = "";
    const { prompt } = state, begun = performance.now();
    const usage = await complete({
      model: state.model, prompt: state.prompt, echo: true, ...longest(page.card), temperature: 0, ...(depthOf() > 0 ? { depth: depthOf() } : {}),
    }, (piece) => {
      first ||= performance.now() - begun;
      text += piece;
      const begins = text.startsWith(prompt) ? prompt.length : 0; // some tokenizers write a prompt otherwise
      given.textContent = text.slice(0, begins);
      answer = text.slice(begins);
      onText();
    }, signal);
    const seconds = (performance.now() - begun) / 1000;
    cost.textContent = usage ? `${usage.completion_tokens} tokens in ${seconds.toFixed(1)} s, first after ${Math.round(first)} ms` : "";
  })), PAUSE);

  return { root, title, get answer() { return answer; }, show(same) {
    made.replaceChildren(answer.slice(0, same), ...(same < answer.length ? [el("mark", { class: "differs" }, answer.slice(same))] : []));
  }, refresh(force) {
    const wanted = JSON.stringify([state.model, state.prompt, depthOf()]);
    if (wanted === asked && !force) return;
    asked = wanted;
    ask();
  } };
}

export function answersView(page, { guarded }) {
  const depth = () => (page.card?.looped ? state.depth : 0);
  // With two answers, what differs is marked from the first letter that does.
  function show() {
    if (!state.other) return one.show(one.answer.length);
    let same = 0;
    while (same < one.answer.length && one.answer[same] === two.answer[same]) same += 1;
    const whole = !two.answer || !one.answer;
    one.show(whole ? one.answer.length : same);
    return two.show(whole ? two.answer.length : same);
  }

  const one = panel("one", page, guarded, depth, () => show()), two = panel("other", page, guarded, () => state.other, () => show());
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
      two.refresh(changed.has("retry"));
    } else two.root.remove();
    if (changed.has("other")) show();
    if (page.plain) one.refresh(changed.has("retry"));
  };
}
