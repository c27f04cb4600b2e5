"use strict";
// What the pages of `trimtab serve` share: elements, numbers, and news from the server.
const trimtabServe = (() => {
  const errors = [];
  const root = document.documentElement;
  root.dataset.errors = "";
  window.addEventListener("error", (event) => { errors.push(event.message); root.dataset.errors = errors.join(" | "); });

  // Text always enters as text: nothing that a log holds is ever read as markup.
  function el(name, attributes = {}, ...children) {
    const node = document.createElement(name);
    for (const key in attributes) {
      if (attributes[key] === true) node.setAttribute(key, "");
      else if (attributes[key] !== false && attributes[key] !== null) node.setAttribute(key, attributes[key]);
    }
    node.append(...children.filter((c) => c !== null && c !== undefined));
    return node;
  }

  function number(v, digits = 4) {
    if (v === null || v === undefined) return "—";
    const a = Math.abs(v);
    if (v === Math.trunc(v) && a < 1e15) return String(v).replace(/\B(?=(\d{3})+(?!\d))/g, "\u202f");
    if (a >= 1e-3 && a < 1e6) return String(Number(v.toPrecision(digits)));
    return v.toExponential(digits - 1).replace(/\.?0*e/, "e").replace("e+", "e");
  }

  function ago(seconds) {
    const s = Date.now() / 1000 - seconds;
    if (s < 90) return `${Math.max(0, Math.round(s))} s ago`;
    if (s < 5400) return `${Math.round(s / 60)} min ago`;
    if (s < 129600) return `${Math.round(s / 3600)} h ago`;
    return `${Math.round(s / 86400)} d ago`;
  }

  function listen(onEvent) {
    const state = document.getElementById("live");
    const source = new EventSource("/events");
    source.onopen = () => { state.textContent = "live"; state.className = "on"; onEvent({ kind: "list" }); };
    source.onerror = () => { state.textContent = "not connected: what is shown may be old"; state.className = "off"; };
    source.onmessage = (message) => onEvent(JSON.parse(message.data));
    window.addEventListener("pagehide", () => source.close());
  }

  // Asks for something again as often as there is news, but never twice at once.
  function refresher(ask) {
    let running = false, again = false;
    return async function refresh() {
      if (running) { again = true; return; }
      running = true;
      try { do { again = false; await ask(); } while (again); } finally { running = false; }
    };
  }

  async function get(address) {
    const answer = await fetch(address);
    if (!answer.ok) throw new Error(`${answer.status} ${await answer.text()}`);
    return answer.json();
  }

  return { el, number, ago, listen, refresher, get };
})();
