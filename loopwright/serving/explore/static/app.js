// Puts the page together: asks the server when the question changes, and lets every view draw when the answer or a choice does.
import { ServerError, get, latest, post, setKey } from "./api.js";
import { answersView } from "./answers.js";
import { attentionView } from "./attention.js";
import { curvesView } from "./curves.js";
import { depthView } from "./depth.js";
import { byId, debounce, setOptions } from "./dom.js";
import { editView } from "./edit.js";
import { gridView } from "./grid.js";
import { pathView } from "./path.js";
import { listen, state, update } from "./state.js";

const RETRY = 1500; // milliseconds between knocks on a server that went
const PATIENCE = 300; // milliseconds after which a view that is still being computed looks like it
// What every view may read: the model's card, and the steps of the plain and of the edited pass.
const page = { card: null, plain: null, edited: null, get steps() { return (state.shown !== "plain" && this.edited) || this.plain; },
  get token() { return this.plain ? Math.min(state.token < 0 ? Infinity : state.token, this.plain.prompt.length - 1) : 0; } };
const views = [depthView, answersView, gridView, pathView, curvesView, attentionView, editView].map((make) => make(page, { problem, guarded }));
const newest = { card: latest(), plain: latest(), edited: latest() };
let models = [];

function problem(message) { byId("problem").textContent = message ?? ""; }

const question = () => JSON.stringify([state.model, state.prompt, state.exit, state.edit]);

function refused(message) {
  clearTimeout(slow);
  stale(false);
  problem(page.plain ? `${message} (below: what came last)` : message);
}

// Runs what asks the server: a wrong question is told below the prompt, a missing key or server above everything.
async function guarded(work) {
  const asked = question();
  try {
    return await work();
  } catch (error) {
    if (!(error instanceof ServerError)) throw error;
    if (error.status === 401) askForKey();
    else if (error.status === 0 || error.status === 503) wait();
    else if (error.status === 404 && !restarted) restart();
    else if (asked === question()) refused(error.message); // of what is no longer asked for nobody wants to know
    return undefined;
  }
}

function draw(changed) {
  if (page.card) for (const view of views) view(changed);
}

const steps = (edit, signal) => post("/explore/steps", {
  model: state.model, prompt: state.prompt, depth: page.card.depths.max, exit: state.exit || null, edit,
}, signal);

// What is on the page is not yet what was asked for: it is dimmed until it is.
function stale(now) {
  byId("main").classList.toggle("stale", now);
  byId("busy").textContent = now ? "Computing …" : "";
}

let slow;
async function load() {
  clearTimeout(slow);
  slow = setTimeout(() => stale(true), PATIENCE);
  await guarded(async () => {
    const plain = await newest.plain((signal) => steps(null, signal));
    if (!plain) return;
    clearTimeout(slow);
    stale(false);
    restarted = false;
    page.plain = plain;
    if (!state.edit) page.edited = null;
    draw(new Set(["data"]));
  });
  await loadEdited();
}

async function loadEdited() {
  if (!state.edit || !page.plain) {
    page.edited = null;
    draw(new Set(["data"]));
    return;
  }
  try {
    const edited = await newest.edited((signal) => steps(state.edit, signal));
    if (!edited) return;
    page.edited = edited;
    page.editProblem = "";
  } catch (error) {
    if (!(error instanceof ServerError)) throw error;
    if (error.status === 0 || error.status === 503) return wait();
    page.edited = null;
    page.editProblem = error.message;
  }
  draw(new Set(["data"]));
}

async function openModel() {
  page.card = page.plain = page.edited = null;
  await guarded(async () => {
    const card = await newest.card((signal) => post("/explore/model", { model: state.model }, signal));
    if (!card) return; // another model was chosen meanwhile
    const usual = { depth: card.depths.default, exit: "", stack: card.looped ? "core" : "prelude" };
    if (card.looped) usual.exit = card.halting === "logits" ? "gate:0.5" : card.halting === "states" ? "act" : "change:0.05";
    const most = card.depths.max;
    Object.assign(page, { card, plain: null, edited: null }); // steps of the model before may have come meanwhile
    update({
      prompt: state.prompt || card.example, depth: Math.min(state.depth || usual.depth, most), other: Math.min(Math.max(state.other, 0), most),
      exit: card.looped ? state.exit || usual.exit : "", stack: card.layers[state.stack] ? state.stack : usual.stack,
      ...(card.looped || (state.edit?.kind === "zero" && card.layers[state.edit.stack]) ? {} : { edit: null, shown: "plain" }),
    });
    describe(card);
    await load();
  });
}

// What the page says of a dense model, by the id of the element; of a looped one it says what stands in the page.
const DENSE = {
  title: "Look inside a model",
  lead: "This model is dense: every layer runs once, so there is no depth to move. The command loopwright retrofit makes a looped one of it.",
  "steps-title": "What it would say next",
  "steps-explain": "A row is a token of the prompt, and beside it the word that the model would put next. The last row is where the answer begins.",
  "looks-explain": "Attention of one head. The stronger the colour, the more of a token’s attention goes there. The line under a head’s number: how much of all its attention one token takes.",
};
const LOOPED = Object.fromEntries(Object.keys(DENSE).map((id) => [id, byId(id).textContent]));

function describe(card) {
  const { prelude, core, coda } = card.layers;
  const size = card.parameters >= 1e6 ? `${(card.parameters / 1e6).toFixed(1)} million` : card.parameters.toLocaleString("en");
  byId("facts").textContent = card.looped
    ? `${prelude} + ${core} looped + ${coda} layers, ${size} parameters`
    : `${prelude + coda} layers, not looped, ${size} parameters`;
  for (const [id, words] of Object.entries(card.looped ? LOOPED : DENSE)) byId(id).textContent = words;
  byId("version").textContent = card.version;
  document.title = `${card.id} · loopwright explorer`;
}

function askForKey() {
  byId("key").hidden = false;
  byId("main").hidden = true;
  byId("key-word").focus();
}

let waiting = false;
async function wait() {
  clearTimeout(slow);
  stale(false);
  if (waiting) return;
  waiting = true;
  const notice = byId("notice");
  notice.textContent = "The server does not answer. The page tries again by itself; what you see is what came last.";
  notice.hidden = false;
  for (;;) {
    await new Promise((done) => setTimeout(done, RETRY));
    try { await get("/health"); break; } catch { /* not yet */ }
  }
  waiting = false;
  notice.hidden = true;
  await start(true);
}

// The server was started anew with other models: asks for them, once until something could be shown.
let restarted = false;
async function restart() {
  restarted = true;
  await start(true);
}

// A model in the place of another one: what was chosen for that one may not fit it.
function anew(model) {
  return { model, depth: 0, other: 0, stack: "", layer: 0, head: 0, exit: "", edit: null, shown: "plain" };
}

async function start(again = false) {
  await guarded(async () => {
    models = (await get("/v1/models")).data.map((card) => card.id);
    byId("key").hidden = true;
    byId("main").hidden = false;
    if (!models.includes(state.model)) update(state.model ? anew(models[0]) : { model: models[0] });
    setOptions(byId("model"), models.map((name) => [name, name]), state.model);
    await openModel();
    if (again) draw(new Set(["retry"]));
  });
}

const reload = debounce(load, 200);
listen((changed) => {
  if (["model", "prompt", "exit", "edit"].some((name) => changed.has(name))) problem("");
  if (changed.has("model") && models.length) {
    byId("model").value = state.model;
    openModel();
  } else if (page.card) {
    if (changed.has("prompt") || changed.has("exit")) reload();
    else if (changed.has("edit")) loadEdited();
    draw(changed);
  }
});

byId("model").addEventListener("change", (event) => update(anew(event.target.value)));
byId("key").addEventListener("submit", (event) => {
  event.preventDefault();
  setKey(byId("key-word").value);
  start();
});
addEventListener("themechange", () => draw(new Set(["theme"])));
start();
