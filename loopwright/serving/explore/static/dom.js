// Elements from plain values. Text goes in as text nodes alone, so that nothing a model or a reader writes is ever markup.
const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

export const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
export const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
export const byId = (id) => document.getElementById(id);

// Options of a select, kept as they are where nothing changed: a rebuilt one would lose the focus.
export function setOptions(select, options, value) {
  const wanted = JSON.stringify(options);
  if (select.dataset.options !== wanted) {
    select.replaceChildren(...options.map(([key, words]) => el("option", { value: key }, words)));
    select.dataset.options = wanted;
  }
  select.value = String(value);
}

export const percent = (share) => (share === null || share === undefined ? "–" : share >= 0.9995 ? "100\u00a0%" : share > 0 && share < 0.001
  ? "below\u00a00.1\u00a0%" : `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)}\u00a0%`);
export const decimal = (value, digits = 2) => (value === null || value === undefined ? "–" : value.toFixed(digits));

// A token as one reads it: what cannot be seen gets a sign.
export function word(text) {
  if (text === "") return "∅";
  if (/^ +$/.test(text)) return "␣";
  return text.replaceAll("\n", "↵").replaceAll("\t", "⇥").trim() || "␣";
}
export const quoted = (text) => `“${word(text)}”`;

export function debounce(work, milliseconds) {
  let timer;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => work(...given), milliseconds);
  };
}
