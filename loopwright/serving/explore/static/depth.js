// The prompt, and the slider that everything follows; Play walks it from the first step to the last.
import { byId, el } from "./dom.js";
import { state, update } from "./state.js";

const BEAT = 450; // milliseconds a step is shown

export function depthView(page) {
  const prompt = byId("prompt"), slider = byId("depth"), play = byId("play"), compare = byId("compare");
  let timer = null;

  function stop() {
    clearInterval(timer);
    timer = null;
    play.textContent = "Play";
  }

  prompt.value = state.prompt;
  prompt.addEventListener("input", () => update({ prompt: prompt.value, token: -1 }));
  slider.addEventListener("input", () => { stop(); update({ depth: slider.valueAsNumber }); });
  play.addEventListener("click", () => {
    if (timer) return stop();
    const last = page.card.depths.max;
    update({ depth: state.depth >= last ? 1 : state.depth + 1 });
    play.textContent = "Pause";
    timer = setInterval(() => {
      if (state.depth < last) update({ depth: state.depth + 1 });
      if (state.depth >= last) stop();
    }, BEAT);
    return undefined;
  });
  compare.addEventListener("click", () => update({ other: state.other ? 0 : farAway() }));

  // Where the second depth starts: at the other end of the slider.
  function farAway() {
    const { max } = page.card.depths;
    return state.depth > max / 2 ? 1 : max;
  }

  return () => {
    const { max } = page.card.depths;
    byId("depthbar").hidden = !page.card.looped;
    slider.max = max;
    slider.value = state.depth;
    slider.disabled = play.disabled = compare.disabled = max === 1;
    slider.setAttribute("aria-valuetext", `${state.depth} of ${max} steps`);
    byId("depth-words").textContent = `${state.depth} of ${max} steps`;
    compare.setAttribute("aria-pressed", Boolean(state.other));
    compare.replaceChildren(...(state.other ? ["One depth"] : ["Compare", el("span", { class: "wide" }, " two depths")]));
    if (document.activeElement !== prompt && prompt.value !== state.prompt) prompt.value = state.prompt;
  };
}
