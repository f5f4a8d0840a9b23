// What the reader has chosen, kept in the address: a copied link shows the same view.
const FIELDS = {
  // name: [letter in the address, read, default]
  model: ["m", String, ""],
  prompt: ["p", String, ""], // "": an example that the model can read
  depth: ["d", Number, 0], // 0: the model's own
  other: ["d2", Number, 0], // 0: no second depth
  token: ["t", Number, -1], // -1: the last one
  colour: ["c", String, "probability"],
  exit: ["x", String, ""],
  stack: ["s", String, ""],
  layer: ["l", Number, 0],
  head: ["h", Number, 0],
  edit: ["e", readEdit, null],
  shown: ["v", String, "plain"],
};

function readEdit(text) {
  const edit = JSON.parse(text);
  if (!["zero", "patch", "swap", "noise"].includes(edit?.kind)) throw new Error("no edit");
  return edit;
}

function read() {
  const given = new URLSearchParams(location.hash.slice(1));
  const state = {};
  for (const [name, [letter, parse, usual]] of Object.entries(FIELDS)) {
    state[name] = usual;
    if (!given.has(letter)) continue;
    try {
      const value = parse(given.get(letter));
      if (parse !== Number || (Number.isInteger(value) && value >= usual)) state[name] = value;
    } catch { /* a broken link: the default */ }
  }
  return state;
}

export const state = read();
const listeners = [];
let written = "";

export function listen(work) { listeners.push(work); }

// Changes fields and tells everybody which ones.
export function update(changes) {
  const changed = new Set(Object.keys(changes).filter((name) => JSON.stringify(state[name]) !== JSON.stringify(changes[name])));
  if (!changed.size) return;
  Object.assign(state, changes);
  write();
  for (const work of listeners) work(changed);
}

let timer;
function write() {
  clearTimeout(timer);
  timer = setTimeout(() => { // browsers refuse many changes of the address in a row
    const given = new URLSearchParams();
    for (const [name, [letter, parse, usual]] of Object.entries(FIELDS)) {
      if (JSON.stringify(state[name]) !== JSON.stringify(usual)) {
        given.set(letter, parse === readEdit ? JSON.stringify(state[name]) : String(state[name]));
      }
    }
    written = given.size ? `#${given}` : "";
    history.replaceState(null, "", written || location.pathname);
  }, 150);
}

// A link that was pasted over this page, or the back button.
// The link to the steps is a place on the page, and says nothing of these fields.
addEventListener("hashchange", () => {
  if (location.hash === written || (location.hash && !location.hash.includes("="))) return;
  const found = read();
  update({ ...found, model: found.model || state.model, prompt: found.prompt || state.prompt });
});
