"use strict";
// Several runs in one picture. The server sends what the pixels can show; a zoom asks again.
(() => {
  const { el, number, listen, refresher, get } = trimtabServe;
  const host = document.getElementById("overlay");
  const asked = new URLSearchParams(location.search);
  const ids = (asked.get("runs") || "").split(",").filter(Boolean);
  const state = {
    signal: asked.get("signal") || "loss", by: asked.get("by") || "step", smooth: Number(asked.get("smooth") || 0),
    log: asked.get("log") === "1", from: asked.get("from"), to: asked.get("to"), hidden: new Set(), data: null, plot: null, shape: "",
  };
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  const title = el("h1", { class: "unknown" }, "Reading the rows…");
  const signal = el("select", { id: "signal" }), by = el("select", { id: "by" });
  const smooth = el("select", { id: "smooth" }, ...[0, 10, 50, 200, 1000, 5000].map((n) => el("option", { value: n }, n ? `mean of ${number(n)} rows` : "none")));
  const log = el("input", { type: "checkbox", id: "log" });
  const out = el("button", { type: "button", id: "reset", disabled: true }, "whole range");
  const box = el("div", { class: "chart", tabindex: "0", role: "group", "aria-label": "curves; arrow keys move, plus and minus zoom, 0 shows the whole range" });
  const readout = el("output", { class: "readout" });
  const legend = el("ul", { class: "runs-legend", "aria-label": "runs; press to hide or show" });
  const note = el("p", { class: "quiet" });
  host.append(title, el("div", { class: "controls" },
    el("label", {}, "signal ", signal), el("label", {}, "along ", by), el("label", {}, "smoothing ", smooth),
    el("label", {}, log, " log axis"), out), box, readout, legend, note);
  smooth.value = String(state.smooth);
  if (smooth.value === "") smooth.append(el("option", { value: state.smooth, selected: true }, `mean of ${state.smooth} rows`));
  log.checked = state.log;

  const width = () => Math.max(280, Math.floor(box.clientWidth));
  const height = () => Math.max(240, Math.min(560, Math.round(window.innerHeight * 0.52)));
  // Colors, not dashes: many runs would need more patterns than eyes tell apart.
  function color(i) {
    if (i < 6) return css(`--a${i}`);
    return `hsl(${Math.round(i * 137.5) % 360} 50% ${matchMedia("(prefers-color-scheme: dark)").matches ? 68 : 38}%)`;
  }

  function address() {
    const query = new URLSearchParams({ runs: ids.join(","), signal: state.signal, by: state.by, width: width() });
    if (state.smooth) query.set("smooth", state.smooth);
    if (state.from !== null) query.set("from", state.from);
    if (state.to !== null) query.set("to", state.to);
    return query;
  }

  function remember() {
    const query = new URLSearchParams({ runs: ids.join(",") });
    for (const [key, usual] of [["signal", "loss"], ["by", "step"]]) if (state[key] !== usual) query.set(key, state[key]);
    if (state.smooth) query.set("smooth", state.smooth);
    if (state.log) query.set("log", "1");
    if (state.from !== null) query.set("from", state.from);
    if (state.to !== null) query.set("to", state.to);
    history.replaceState(null, "", `?${query}`);
  }

  function unit(by) { return by === "step" ? "step" : by === "tokens" ? "tokens" : "training time, h"; }
  const place = (x) => (state.by === "time" ? x / 3600 : x);

  function options() {
    return {
      width: width(), height: height(), legend: { show: false }, pxAlign: false,
      cursor: { drag: { x: true, y: false, setScale: false, dist: 5 }, points: { size: 5 } },
      scales: { x: { time: false, range: (u, low, high) => [low, high] }, y: { distr: state.log ? 3 : 1 } },
      axes: [
        { stroke: css("--soft"), grid: { stroke: css("--grid"), width: 1 }, ticks: { stroke: css("--rule") }, values: (u, splits) => splits.map((v) => number(place(v), 6)), label: unit(state.by), labelSize: 22, font: "11px sans-serif", labelFont: "12px sans-serif" },
        { stroke: css("--soft"), grid: { stroke: css("--grid"), width: 1 }, ticks: { stroke: css("--rule") }, size: 62, values: (u, splits) => splits.map((v) => (v === null ? "" : number(v, 4))), font: "11px sans-serif" },
      ],
      series: [{}, ...state.data.runs.map((run, i) => ({ label: run.title, stroke: color(i), width: 1, spanGaps: true, points: { show: state.data.whole && state.data.x.length < 60 }, show: !state.hidden.has(run.id), ...(state.data.whole || state.smooth > 1 ? {} : { paths: () => null }) }))],
      hooks: { draw: [columns], setCursor: [(u) => told(u.cursor.idx)], setSelect: [(u) => { if (u.select.width > 4) zoom(u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x")); u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false); }] },
    };
  }

  // Of gathered rows each column is one bar, joined to the one before it. The bars of all runs are
  // set as pixels of one image: canvas calls for twenty runs take the browser some ten times as long.
  const layer = document.createElement("canvas");
  function columns(u) {
    if (state.data.whole || state.smooth > 1) return;
    const { ctx, bbox } = u, scale = u.scales.y, log = state.log ? Math.log10 : (v) => v;
    const wide = Math.round(bbox.width), high = Math.round(bbox.height);
    if (wide < 1 || high < 1 || scale.min === null || scale.min === undefined) return;
    const image = new ImageData(wide, high), pixels = new Uint32Array(image.data.buffer);
    const thick = Math.max(1, Math.round(devicePixelRatio));
    const least = log(scale.min), perRow = high / (log(scale.max) - least);
    const places = u.data[0].map((x) => Math.round(u.valToPos(x, "x", true) - bbox.left));
    for (let i = 1; i < u.series.length; i++) {
      if (!u.series[i].show) continue;
      const ys = u.data[i], [r, g, b] = channels(ctx, color(i - 1)), ink = (255 << 24 | b << 16 | g << 8 | r) >>> 0;
      let before = null;
      for (let k = 0; k + 1 < places.length; k += 2) {
        if (ys[k] === null || ys[k + 1] === null) { before = null; continue; }
        const p = high - (log(ys[k]) - least) * perRow, q = high - (log(ys[k + 1]) - least) * perRow;
        let top = p < q ? p : q, bottom = p < q ? q : p;
        const own = [top, bottom];
        if (before) { if (before[1] < top) top = before[1]; if (before[0] > bottom) bottom = before[0]; }
        before = own;
        const first = Math.max(Math.round(top), 0), end = Math.min(Math.max(Math.round(bottom), Math.round(top) + thick), high);
        for (let x = Math.max(places[k], 0); x < Math.min(places[k] + thick, wide); x++) {
          for (let at = first * wide + x, last = end * wide; at < last; at += wide) pixels[at] = ink;
        }
      }
    }
    layer.width = wide; layer.height = high;
    layer.getContext("2d").putImageData(image, 0, 0);
    ctx.drawImage(layer, Math.round(bbox.left), Math.round(bbox.top));
  }

  function channels(ctx, name) {
    ctx.save();
    ctx.fillStyle = name;
    const hex = ctx.fillStyle;
    ctx.restore();
    return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  }

  // On a log axis what is not above zero has no place; it is left out there, and said below.
  function table() {
    let lost = 0;
    const rows = state.data.runs.map((run) => {
      const y = run.y || new Array(state.data.x.length).fill(null);
      if (!state.log) return y;
      return y.map((v) => { if (v !== null && v <= 0) { lost += 1; return null; } return v; });
    });
    state.lost = lost;
    return [state.data.x, ...rows];
  }

  function told(index) {
    if (index === null || index === undefined || !state.data || !state.data.x.length) { readout.replaceChildren(); return; }
    const x = state.data.x[index];
    const found = state.data.runs.map((run, i) => [run, i, run.y ? near(run.y, index) : null]).filter(([run, , v]) => v !== null && !state.hidden.has(run.id));
    found.sort((a, b) => a[2] - b[2]);
    const parts = found.slice(0, 8).map(([run, i, v]) => el("span", { class: "value" }, swatch(i), ` ${short(run.title)} `, el("b", {}, number(v, 5))));
    const word = state.by === "time" ? `${number(place(x), 4)} h` : `${state.by === "step" ? "step" : "tokens"} ${number(Math.round(x))}`;
    readout.replaceChildren(el("span", { class: "at" }, word), ...parts, ...(found.length > 8 ? [el("span", {}, `and ${found.length - 8} more`)] : []));
  }

  function near(y, index) {  // rows of runs lie at places of their own
    for (let d = 0; d < 12; d++) {
      if (y[index - d] !== null && y[index - d] !== undefined) return y[index - d];
      if (y[index + d] !== null && y[index + d] !== undefined) return y[index + d];
    }
    return null;
  }

  const short = (text) => (text.length > 34 ? `${text.slice(0, 14)}…${text.slice(-18)}` : text);
  function swatch(i) {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    svg.setAttribute("width", 18); svg.setAttribute("height", 9); svg.setAttribute("aria-hidden", "true");
    const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
    for (const [k, v] of [["x1", 0], ["x2", 18], ["y1", 5], ["y2", 5], ["class", "curve"]]) line.setAttribute(k, v);
    line.style.stroke = color(i);
    svg.append(line);
    return svg;
  }

  function drawLegend() {
    const active = document.activeElement && document.activeElement.closest(".runs-legend") ? document.activeElement.dataset.run : null;
    legend.replaceChildren(...state.data.runs.map((run, i) => {
      const button = el("button", { type: "button", "data-run": run.id, "aria-pressed": String(!state.hidden.has(run.id)), title: run.title }, swatch(i), ` ${short(run.title)}`);
      button.addEventListener("click", () => {
        if (state.hidden.has(run.id)) state.hidden.delete(run.id); else state.hidden.add(run.id);
        state.plot.setSeries(i + 1, { show: !state.hidden.has(run.id) });
        button.setAttribute("aria-pressed", String(!state.hidden.has(run.id)));
      });
      const word = run.y ? (run.standing === "critical" || run.standing === "warning" ? run.verdict.replace("-", " ") : run.state === "judging" ? "being judged" : "") : run.state === "ready" || run.state === "judging" ? "has no such signal or axis" : run.state === "reading" ? "reading…" : "unreadable";
      return el("li", {}, button, el("a", { href: `/run/${run.id}`, "aria-label": `page of ${run.title}` }, "page"), word ? el("span", { class: `state ${run.standing}` }, word) : null);
    }));
    if (active) { const again = legend.querySelector(`[data-run="${CSS.escape(active)}"]`); if (again) again.focus(); }
  }

  function fill(select, entries, value) {
    const known = [...select.options].map((o) => o.value).join("|");
    if (known !== entries.map(([v]) => v).join("|")) select.replaceChildren(...entries.map(([v, label]) => el("option", { value: v }, label)));
    select.value = value;
  }

  function draw() {
    const { data } = state;
    fill(signal, Object.entries(data.signals), state.signal);
    fill(by, data.axes.map((a) => [a, a === "time" ? "training time" : a]), state.by);
    const drawn = data.runs.filter((r) => r.y).length, many = data.runs.length;
    const what = data.signals[state.signal] || state.signal;
    title.textContent = many ? `${what}${data.unit ? `, ${data.unit}` : ""}: ${drawn === many ? "" : `${drawn} of `}${many} run${many === 1 ? "" : "s"}` : "No run chosen; choose some in the list.";
    title.className = many ? "good" : "unknown";
    const shape = JSON.stringify([data.runs.map((r) => r.id), state.log, state.by, css("--paper"), data.whole, state.smooth > 1, data.whole && data.x.length < 60]);
    const rows = table();
    if (!state.plot || shape !== state.shape) {
      if (state.plot) state.plot.destroy();
      state.plot = new uPlot(options(), null, box);
      state.shape = shape;
    }
    state.plot.batch(() => {  // one drawing for all three
      state.plot.setSize({ width: width(), height: height() });
      state.plot.setData(rows, false);
      state.plot.setScale("x", { min: data.range[0], max: data.range[1] });
    });
    out.disabled = state.from === null && state.to === null;
    drawLegend();
    note.textContent = [data.whole ? "Every row is drawn." : "Each pixel column shows its lowest and highest value; zoom in for single rows." + (drawn > 3 ? " Later runs cover earlier ones: smooth them, or press a name to hide it." : ""), state.smooth ? "Smoothed: the mean of neighboring rows; what is not finite enters none." : "", state.lost ? "Values not above 0 have no place on a log axis and are left out." : "", "Drag to zoom; branches that were given up are on the page of their run."].filter(Boolean).join(" ");
    document.documentElement.dataset.ready = "yes";
    document.documentElement.dataset.drawn = String(Number(document.documentElement.dataset.drawn || 0) + 1);
  }

  const refresh = refresher(async () => {
    if (!ids.length) { state.data = { x: [], runs: [], signals: {}, axes: ["step"], range: [0, 1], limits: [0, 1], unit: "", whole: true }; draw(); return; }
    state.data = await get(`/api/curves?${address()}`);
    draw();
  });

  function zoom(low, high) {
    if (!(high > low)) return undefined;
    const [first, last] = state.data.limits;
    state.from = low <= first ? null : low;
    state.to = high >= last ? null : high;
    remember();
    // an answer that takes long is bridged with what is there; one that does not is drawn once
    const bridge = setTimeout(() => { if (state.plot) state.plot.setScale("x", { min: low, max: high }); }, 120);
    return refresh().finally(() => clearTimeout(bridge));
  }
  function whole() { state.from = state.to = null; remember(); return refresh(); }

  signal.addEventListener("change", () => { state.signal = signal.value; remember(); refresh(); });
  by.addEventListener("change", () => { state.by = by.value; state.from = state.to = null; remember(); refresh(); });
  smooth.addEventListener("change", () => { state.smooth = Number(smooth.value); remember(); refresh(); });
  log.addEventListener("change", () => { state.log = log.checked; remember(); draw(); });
  out.addEventListener("click", whole);
  box.addEventListener("dblclick", whole);
  window.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select") || !state.data) return;
    const [low, high] = state.data.range, span = high - low;
    if (event.key === "0" || event.key === "Escape") whole();
    else if (event.key === "+" || event.key === "=") zoom(low + span / 4, high - span / 4);
    else if (event.key === "-") zoom(low - span / 2, high + span / 2);
    else if (event.key === "ArrowLeft" && event.target === box) { event.preventDefault(); zoom(low - span / 4, high - span / 4); }
    else if (event.key === "ArrowRight" && event.target === box) { event.preventDefault(); zoom(low + span / 4, high + span / 4); }
  });
  let waiting = 0;
  window.addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(refresh, 150); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { if (state.data) draw(); });
  listen((event) => { if (event.kind === "list" || ids.includes(event.id)) refresh(); });
  window.trimtab = { state, zoom, whole, refresh };
})();
