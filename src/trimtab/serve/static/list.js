"use strict";
// The list of runs: what asks for action first, searched and filtered in the browser.
(() => {
  const { el, number, ago, listen, refresher, get } = trimtabServe;
  const host = document.getElementById("list");
  const rank = { critical: 0, warning: 1, unknown: 2, "": 3, good: 4 };
  const words = { critical: "critical", warning: "warning", good: "ok", unknown: "not judged" };
  const kinds = [["all", "all"], ["act", "needs action"], ["live", "growing"], ["error", "unreadable"]];
  const asked = new URLSearchParams(location.search);
  const state = { runs: [], left: "", find: asked.get("find") || "", kind: asked.get("show") || "all", chosen: new Set() };

  const summary = el("h1", { class: "good" }, "Reading the list…");
  const find = el("input", { type: "search", id: "find", placeholder: "name, verdict, incident", "aria-label": "search runs" });
  find.value = state.find;
  const buttons = kinds.map(([kind, label]) => el("button", { type: "button", "data-kind": kind }, label));
  const compare = el("button", { type: "button", id: "compare", disabled: true }, "overlay the chosen");
  const body = el("tbody");
  const left = el("p", { class: "quiet" });
  const table = el("table", { class: "runs" }, el("thead", {}, el("tr", {},
    el("th", { scope: "col" }, el("span", { class: "away" }, "choose")), ...["run", "state", "worst", "step", "loss", "changed"].map((t) =>
      el("th", { scope: "col", class: ["step", "loss", "changed"].includes(t) ? "n" : "" }, t)))), body);
  host.append(summary, el("div", { class: "controls" }, find, el("span", { role: "group", "aria-label": "show", class: "kinds" }, ...buttons), compare), el("div", { class: "below" }, table), left);

  const acts = (r) => r.standing === "critical" || r.standing === "warning";
  const grows = (r) => r.changed && Date.now() / 1000 - r.changed < 600;
  function shown(r) {
    if (state.kind === "act" && !acts(r)) return false;
    if (state.kind === "live" && !grows(r)) return false;
    if (state.kind === "error" && r.state !== "error") return false;
    const text = [r.title, r.verdict, r.said, r.state, r.format, ...r.incidents.map((i) => i[2])].join(" ").toLowerCase();
    return state.find.toLowerCase().split(/\s+/).every((word) => text.includes(word));
  }

  function row(r) {
    const box = el("input", { type: "checkbox", "aria-label": `choose ${r.title}` });
    box.checked = state.chosen.has(r.id);
    box.addEventListener("change", () => { if (box.checked) state.chosen.add(r.id); else state.chosen.delete(r.id); chosen(); });
    const what = r.state === "error" ? "unreadable" : r.state === "reading" ? "reading…" : r.state === "judging" ? "judging…" : r.standing === "good" && r.verdict === "incident" ? "past incident" : r.verdict.replace("-", " ");
    const tone = r.state === "error" ? "warning" : r.standing;
    const worst = r.incidents.find((i) => i[1] !== "info");
    const said = r.state === "error" ? r.error : r.said;
    const link = worst && r.state !== "error" ? el("a", { href: `/run/${r.id}/incident/${worst[0]}` }, said) : el("span", {}, said);
    const saved = r.saved ? el("div", { class: "quiet" }, `guard: ${r.saved}`) : null;
    return el("tr", { "data-run": r.id }, el("td", {}, box),
      el("td", { class: "name" }, el("a", { href: `/run/${r.id}` }, r.title)),
      el("td", { class: `state ${tone}` }, what), el("td", { class: "said" }, link, saved),
      el("td", { class: "n" }, number(r.step)), el("td", { class: "n" }, number(r.loss)),
      el("td", { class: "n" }, r.changed ? ago(r.changed) : "—"));
  }

  function chosen() {
    compare.disabled = !state.chosen.size;
    compare.textContent = state.chosen.size ? `overlay ${state.chosen.size}` : "overlay the chosen";
  }

  function draw() {
    const order = state.runs.filter(shown).sort((a, b) =>
      (rank[a.state === "error" ? "warning" : a.standing] ?? 3) - (rank[b.state === "error" ? "warning" : b.standing] ?? 3) || a.title.localeCompare(b.title, "en", { numeric: true }));
    const active = document.activeElement && document.activeElement.closest("tr[data-run]") ? [document.activeElement.closest("tr").dataset.run, document.activeElement.tagName] : null;
    body.replaceChildren(...order.map(row));
    if (active) { const again = body.querySelector(`tr[data-run="${CSS.escape(active[0])}"] ${active[1]}`); if (again) again.focus(); }
    const count = (name) => state.runs.filter((r) => r.standing === name).length;
    const busy = state.runs.filter((r) => r.state === "reading" || r.state === "judging").length, bad = state.runs.filter((r) => r.state === "error").length;
    const parts = [[count("critical"), "critical"], [count("warning"), "with a warning"], [count("unknown"), "not judged"], [bad, "unreadable"], [busy, "being read or judged"]].filter(([n]) => n).map(([n, word]) => `${n} ${word}`);
    const many = `${state.runs.length} run${state.runs.length === 1 ? "" : "s"}`;
    summary.textContent = parts.length ? `${many}: ${parts.join(", ")}.` : `${many}: none needs action.`;
    if (!state.runs.length) summary.textContent = "No run here yet; a log that appears is listed within seconds.";
    summary.className = count("critical") ? "critical" : count("warning") || bad ? "warning" : busy || count("unknown") ? "unknown" : "good";
    left.textContent = [order.length < state.runs.length ? `${state.runs.length - order.length} not shown by the search.` : "", state.left].filter(Boolean).join(" ");
    for (const b of buttons) b.setAttribute("aria-pressed", String(b.dataset.kind === state.kind));
    document.documentElement.dataset.ready = "yes";
    const query = new URLSearchParams();
    if (state.find) query.set("find", state.find);
    if (state.kind !== "all") query.set("show", state.kind);
    history.replaceState(null, "", query.size ? `?${query}` : "/");
  }

  find.addEventListener("input", () => { state.find = find.value; draw(); });
  for (const b of buttons) b.addEventListener("click", () => { state.kind = b.dataset.kind; draw(); });
  compare.addEventListener("click", () => { location.href = `/overlay?runs=${[...state.chosen].join(",")}`; });
  window.addEventListener("keydown", (event) => {
    if (event.target.closest("input") || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "/") { event.preventDefault(); find.focus(); }
  });
  const refresh = refresher(async () => {
    const found = await get("/api/runs");
    state.runs = found.runs;
    state.left = found.left_out;
    draw();
  });
  listen(refresh);
  setInterval(draw, 30000);  // ages
})();
