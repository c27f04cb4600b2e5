"use strict";
// The page around the panels: zoom, selection of incidents, keyboard, read-out under the pointer.
(() => {
  const root = document.documentElement;
  const errors = [];
  const fail = (message) => { errors.push(String(message)); root.dataset.errors = errors.join(" | "); };
  window.addEventListener("error", (event) => fail(event.message));
  root.dataset.errors = "";

  const data = JSON.parse(document.getElementById("data").textContent);
  unpack(data);
  let full = data.range;
  const state = { range: full, selected: null, smooth: 1, log: false, attempt: -1 };
  const host = document.getElementById("panels");
  const below = (p) => thin(p) && !p.lost;
  let frames, first, byLetter, cards;

  function unpack(fresh) {  // steps are kept once for all signals that share them
    for (const panel of fresh.panels) {
      for (const s of [...panel.stretches, ...panel.dots]) s.x = fresh.xs[s.x];
    }
    for (const heat of fresh.heats) {
      for (const p of heat.parts) p.x = fresh.xs[p.x];
    }
  }

  function build() {
    frames = [...data.panels.filter((p) => !below(p)), ...data.heats, ...data.panels.filter(below)].map(buildFrame);
    first = frames.findIndex((f) => !thin(f.panel));  // the letters stand above it
    byLetter = Object.fromEntries(data.bands.map((b) => [b.letter, b]));
    cards = [...document.querySelectorAll("[data-letter]")];
    for (const card of cards) {
      if (card.dataset.heard) continue;
      card.dataset.heard = "yes";
      card.addEventListener("click", (event) => {
        if (!event.target.closest("summary, a") && !String(getSelection())) select(card.dataset.letter);
      });
      card.addEventListener("keydown", (event) => { if (event.key === "Enter" && event.target === card) select(card.dataset.letter); });
      card.classList.toggle("selected", card.dataset.letter === state.selected);
    }
    if (first >= 0) frames[first].section.classList.add("leading");
    host.replaceChildren(...frames.map((f) => f.section));
  }

  // What the reader chose to see: a mean of neighbors, or logs of the loss.
  function shown(panel) {
    if (panel.parts || panel.strip) return panel;
    if (state.attempt >= 0) {
      const own = (list) => list.filter((s) => s.a === state.attempt);
      panel = { ...panel, stretches: own(panel.stretches), dots: own(panel.dots), mark: null };
    }
    const positive = state.log && panel.scale !== "log" && panel.stretches.some((s) => s.y.some((v) => v > 0));
    if (state.smooth < 2 && !positive) return panel;
    const stretches = state.smooth < 2 ? panel.stretches : panel.stretches.map((s) => ({ ...s, y: trimtabChart.smoothed(s.y, state.smooth) }));
    return { ...panel, stretches, scale: positive ? "log" : panel.scale, perplexity: panel.perplexity && !positive };
  }

  function thin(panel) {  // takes one line
    if (panel.parts) return false;
    return Boolean(panel.strip);
  }

  function buildFrame(panel) {
    const section = document.createElement("section");
    section.className = "panel";
    const head = document.createElement("header");
    const title = document.createElement("h2"), note = document.createElement("span"), readout = document.createElement("output");
    title.textContent = panel.title;
    note.textContent = [panel.unit, panel.note].filter(Boolean).join(" · ");
    note.className = "note";
    const canvas = document.createElement("div");
    head.append(title, note, readout);
    if (!thin(panel)) section.append(head);
    else section.classList.add("thin");
    section.append(canvas);
    return { panel, section, canvas, note, readout, drawn: null };
  }

  function drawAll(paper) {
    const width = paper || Math.max(320, host.clientWidth || host.closest("main").clientWidth);
    const few = frames.filter((f) => !thin(f.panel)).length <= 2;  // then there is room to draw them taller
    frames.forEach((frame, index) => {
      const lead = index === first, heat = Boolean(frame.panel.parts);
      frame.drawn = (heat ? trimtabHeat : trimtabChart).draw(frame.canvas, shown(frame.panel), {
        width, height: thin(frame.panel) ? 20 : lead ? (few ? 330 : 230) : few ? 150 : 96, range: state.range, bands: data.bands, selected: state.selected,
        events: data.events, lead, labels: lead || index === frames.length - 1, word: data.axis, onPick: select,
      });
      if (frame.drawn.said) frame.note.textContent = frame.drawn.said;
    });
    root.dataset.x0 = state.range[0];
    root.dataset.x1 = state.range[1];
    root.dataset.selected = state.selected || "";
    document.getElementById("reset").hidden = state.range === full && !state.selected;
  }

  // From well before the first sign to well after the peak: what a reader wants to see first.
  function windowOf(band) {
    const first = band.precursor === null ? band.onset : Math.min(band.precursor, band.onset);
    const loss = data.panels[0].stretches.flatMap((s) => s.x).filter((x) => x >= first - 1e-9).slice(0, 8);
    const spacing = loss.length > 1 ? (loss[loss.length - 1] - loss[0]) / (loss.length - 1) : 1;
    const core = Math.max(Math.max(band.peak, band.onset) - first, 12 * spacing, (full[1] - full[0]) * 2e-4);
    const end = Math.min(band.end, Math.max(band.peak, band.onset) + 1.2 * core);
    return [Math.max(full[0], first - 0.9 * core), Math.min(full[1], Math.max(end, first + core) + 0.9 * core)];
  }

  function zoom(range) {
    const low = Math.max(full[0], range[0]), high = Math.min(full[1], range[1]);
    if (!(high > low)) return;
    state.range = [low, high];
    drawAll();
    if (window.trimtab.onZoom) window.trimtab.onZoom();
  }

  // New rows: the same panels are drawn on; a reader who looks at a part keeps that part.
  function replace(fresh) {
    const whole = state.range === full;  // now: the reader may have zoomed since it was asked for
    const byName = new Map(data.panels.map((p) => [p.name, p]));
    const same = fresh.panels.length === data.panels.length && fresh.panels.every((p) => byName.has(p.name) && thin(p) === thin(byName.get(p.name)));
    data.attempts = fresh.attempts;
    data.range = fresh.range;
    full = fresh.range;
    if (whole) state.range = full;
    for (const p of fresh.panels) for (const s of [...p.stretches, ...p.dots]) s.y = Array.from(s.y);
    if (same) {
      for (const p of fresh.panels) Object.assign(byName.get(p.name), p, { mark: byName.get(p.name).mark });
    } else {
      const kept = data.panels.filter((p) => !fresh.panels.some((q) => q.name === p.name));
      data.panels = [...fresh.panels, ...kept];
      build();
    }
    drawAll();
  }

  // A new verdict: other incidents, other heat maps.
  function judged(fresh) {
    const whole = state.range === full;
    unpack(fresh);
    Object.assign(data, fresh);
    full = data.range;
    if (whole) state.range = full;
    if (state.selected && !data.bands.some((b) => b.letter === state.selected)) state.selected = null;
    build();
    drawAll();
  }

  function select(letter) {
    const band = byLetter[letter];
    if (!band) return;
    state.selected = letter;
    for (const card of cards) card.classList.toggle("selected", card.dataset.letter === letter);
    const card = cards.find((c) => c.dataset.letter === letter);
    if (card) {
      const fold = card.closest("details");
      if (fold) fold.open = true;
      const list = document.getElementById("cards");
      if (list && list.scrollHeight > list.clientHeight) list.scrollTop += card.getBoundingClientRect().top - list.getBoundingClientRect().top;
    }
    history.replaceState(null, "", `#incident=${letter}`);
    zoom(windowOf(band));
  }

  function reset() {
    state.range = full;
    state.selected = null;
    for (const card of cards) card.classList.remove("selected");
    history.replaceState(null, "", "#");
    drawAll();
    if (window.trimtab.onZoom) window.trimtab.onZoom();
  }

  function step(by) {
    if (!data.bands.length) return;
    const at = data.bands.findIndex((b) => b.letter === state.selected);
    const next = at < 0 ? (by > 0 ? 0 : data.bands.length - 1) : (at + by + data.bands.length) % data.bands.length;
    select(data.bands[next].letter);
  }

  function valueText(panel, y) {
    const f = trimtabChart.format;
    if (y === null) return "NaN or Inf";
    return panel.perplexity ? `${f(y)}  ppl ${f(Math.exp(y))}` : f(y);
  }

  function showReadout(at) {
    for (const { panel, readout, drawn } of frames) {
      if (panel.parts) {
        const read = trimtabHeat.readout(panel, at);
        for (const end of ["x1", "x2"]) drawn.hair.setAttribute(end, drawn.X(read ? read.step : at));
        readout.textContent = read ? `${data.axis} ${trimtabChart.format(read.step, 7)}   ${read.text}` : "";
        continue;
      }
      const found = trimtabChart.nearest(panel, at);
      const x = found.length ? found[0].x : at;
      drawn.hair.setAttribute("x1", drawn.X(x));
      drawn.hair.setAttribute("x2", drawn.X(x));
      const texts = found.slice(0, 3).map((p, i) => {
        const who = data.attempts.length > 1 ? `${data.attempts[p.a].number}: ` : "";
        return (i ? "" : `${data.axis} ${trimtabChart.format(p.x, 7)}   `) + who + valueText(panel, p.y);
      });
      readout.textContent = texts.join("   ");
    }
    host.classList.add("reading");
  }

  function hideReadout() {
    for (const { readout, drawn } of frames) {
      readout.textContent = "";
      for (const end of ["x1", "x2"]) drawn.hair.setAttribute(end, -9);
    }
    host.classList.remove("reading");
  }

  let drag = null;
  function position(event) {  // SVG may be scaled: from client pixels to its own
    const svg = frames[0].drawn.svg, box = svg.getBoundingClientRect();
    return ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
  }
  host.addEventListener("pointerdown", (event) => {
    if (event.button === 0 && event.target.closest("svg")) drag = position(event);
  });
  host.addEventListener("pointermove", (event) => {
    if (!event.target.closest("svg") && drag === null) { hideReadout(); return; }
    const { left, right, toX } = frames[0].drawn;
    const here = Math.min(right, Math.max(left, position(event)));
    showReadout(toX(here));
    if (drag === null) return;
    for (const { drawn } of frames) {
      drawn.brush.setAttribute("x", Math.min(drag, here));
      drawn.brush.setAttribute("width", Math.abs(here - drag));
    }
  });
  window.addEventListener("pointerup", (event) => {
    if (drag === null) return;
    const here = position(event), from = drag, { left, right, toX } = frames[0].drawn;
    drag = null;
    for (const { drawn } of frames) drawn.brush.setAttribute("width", 0);
    if (Math.abs(here - from) < 6) return;
    const clamp = (pixel) => toX(Math.min(right, Math.max(left, pixel)));
    zoom([clamp(Math.min(from, here)), clamp(Math.max(from, here))]);
  });
  host.addEventListener("pointerleave", hideReadout);
  host.addEventListener("dblclick", reset);
  document.getElementById("reset").addEventListener("click", reset);
  tools();

  // Smoothing and a log axis; the choices stand where a reader looks for them, above the plots.
  function tools() {
    const place = document.querySelector(".tools");
    if (!place || !data.panels.some((p) => p.stretches.length)) return;
    const smooth = document.createElement("select"), log = document.createElement("input");
    smooth.setAttribute("aria-label", "smoothing");
    for (const n of [1, 5, 20, 100, 500]) {
      const option = document.createElement("option");
      option.value = n;
      option.textContent = n === 1 ? "no smoothing" : `mean of ${n} points`;
      smooth.append(option);
    }
    log.type = "checkbox";
    const label = document.createElement("label");
    label.append(log, " log axes");
    smooth.addEventListener("change", () => { state.smooth = Number(smooth.value); drawAll(); });
    log.addEventListener("change", () => { state.log = log.checked; drawAll(); });
    place.append(smooth, label);
    if (data.attempts.length < 2) return;
    const attempt = document.createElement("select");
    attempt.setAttribute("aria-label", "attempt");
    for (const [i, name] of [[-1, "all attempts"], ...data.attempts.map((a, i) => [i, `${a.number}${a.trial ? " (trial)" : ""}`])]) {
      const option = document.createElement("option");
      option.value = i;
      option.textContent = name;
      attempt.append(option);
    }
    attempt.addEventListener("change", () => only(Number(attempt.value)));
    place.prepend(attempt);
  }

  // One attempt alone, where it lies on the axis; -1: all of them.
  function only(index) {
    state.attempt = index;
    const ends = data.panels.flatMap((p) => p.stretches).filter((s) => s.a === index && s.x.length).flatMap((s) => [s.x[0], s.x[s.x.length - 1]]);
    if (index < 0 || !ends.length) { reset(); return; }
    const low = Math.min(...ends), high = Math.max(...ends), room = (high - low) * 0.02 || 1;
    zoom([low - room, high + room]);
  }

  window.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("textarea, select")) return;
    if (event.key === "n") step(1);
    else if (event.key === "p") step(-1);
    else if (event.key === "0" || event.key === "Escape") reset();
    else if (event.key === "+" || event.key === "=" || event.key === "-") {
      const [low, high] = state.range, by = (high - low) * (event.key === "-" ? 0.5 : -0.25);
      zoom([low - by, high + by]);
    }
  });
  window.addEventListener("resize", () => drawAll());
  window.addEventListener("beforeprint", () => {
    for (const fold of document.querySelectorAll(".card > dl > dd > details, #cards > details")) fold.open = true;
    drawAll(760);
  });  // about the width of a page, so that the type keeps its size
  window.addEventListener("afterprint", () => drawAll());
  function fromHash() {
    const asked = /^#incident=([A-Z]+)$/.exec(location.hash);
    if (asked && asked[1] !== state.selected) select(asked[1]);
  }
  window.addEventListener("hashchange", fromHash);

  // For tests and for the console: what is shown, and one row read back.
  window.trimtab = {
    data, state, select, reset, step, zoom, errors, replace, judged, onZoom: null,
    isWhole: () => state.range === full,
    readout(at) {
      const loss = data.panels.find((p) => p.name === "loss"), found = loss ? trimtabChart.nearest(loss, at) : [];
      return found.length ? { step: found[0].x, loss: found[0].y, perplexity: found[0].y === null ? null : Math.exp(found[0].y) } : null;
    },
  };

  build();
  drawAll();
  fromHash();
  root.dataset.requests = performance.getEntriesByType("resource").length;
  root.dataset.ready = "yes";
})();
