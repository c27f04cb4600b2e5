"use strict";
// Draws one panel as SVG. Every pixel column shows its lowest and highest value, so no spike is
// lost however many rows there are. Nothing here knows of the page around it.
const trimtabChart = (() => {
  const NS = "http://www.w3.org/2000/svg";
  const LEFT = 62, RIGHT = 58, INSET = 6, COLOURS = 6;

  function el(name, attributes, text) {
    const node = document.createElementNS(NS, name);
    for (const key in attributes) node.setAttribute(key, attributes[key]);
    if (text !== undefined) node.textContent = text;
    return node;
  }

  function grouped(text) {
    return text.replace(/\B(?=(\d{3})+(?!\d))/g, "\u202f");
  }

  function format(v, digits = 4) {
    if (v === null || v === undefined || Number.isNaN(v)) return "NaN";
    if (!Number.isFinite(v)) return v > 0 ? "\u221e" : "\u2212\u221e";
    const a = Math.abs(v);
    if (v === Math.trunc(v) && a < 1e7) return a >= 10000 ? grouped(String(v)) : String(v);
    if (a >= 10 ** digits && a < 1e7) return grouped(v.toFixed(0));
    if (a >= 1e-3 && a < 10 ** digits) return String(Number(v.toPrecision(digits)));
    return v.toExponential(digits - 1).replace(/\.?0*e/, "e").replace("e+", "e");
  }

  function niceTicks(low, high, count) {
    const raw = (high - low) / count;
    if (!(raw > 0) || !Number.isFinite(raw)) return [low];
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = power * (raw < 1.5 * power ? 1 : raw < 3.5 * power ? 2 : raw < 7.5 * power ? 5 : 10);
    const ticks = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) ticks.push(Number((i * step).toPrecision(12)));
    return ticks;
  }

  function logTicks(low, high) {  // low and high are log10
    const decades = [];
    for (let d = Math.ceil(low - 1e-9); d <= high + 1e-9; d++) decades.push(10 ** d);
    if (decades.length >= 3) return decades.filter((_, i) => i % Math.ceil(decades.length / 4) === 0);
    const ticks = [];
    for (let d = Math.floor(low); d <= high; d++) {
      for (const m of high - low > 1.2 ? [1, 3] : [1, 2, 5]) {
        const t = Math.log10(m) + d;
        if (t >= low && t <= high) ticks.push(m * 10 ** d);
      }
    }
    return ticks.length >= 2 ? ticks : niceTicks(10 ** low, 10 ** high, 3).filter((t) => t > 0);
  }

  // first index with x[i] >= value
  function lowerBound(x, value) {
    let low = 0, high = x.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (x[middle] < value) low = middle + 1; else high = middle;
    }
    return low;
  }

  function visible(stretch, range) {  // one row outside on either side, so that lines reach the edge
    const first = Math.max(0, lowerBound(stretch.x, range[0]) - 1);
    const end = Math.min(stretch.x.length, lowerBound(stretch.x, range[1]) + 1);
    return [first, Math.max(first, end)];
  }

  function extent(panel, range, log) {
    let low = Infinity, high = -Infinity;
    for (const s of [...panel.stretches, ...panel.dots]) {
      const [first, end] = visible(s, range);
      for (let i = first; i < end; i++) {
        const v = s.y[i];
        if (v === null || s.x[i] < range[0] || s.x[i] > range[1] || (log && v <= 0)) continue;  // zeros lie at the foot of a log scale
        if (v < low) low = v;
        if (v > high) high = v;
      }
    }
    if (low > high) return log ? [-0.5, 0.5] : [0, 1];
    if (log) { low = Math.log10(low); high = Math.log10(high); }
    const pad = (high - low) * 0.07 || (log ? 0.15 : Math.abs(high) * 0.05 || 0.5);
    return [low - pad, high + pad];
  }

  // Path of one stretch: all points where they are few, else four per pixel column.
  function curve(stretch, range, X, Y, width) {
    const [first, end] = visible(stretch, range);
    const parts = [];
    let pen = "M";
    const put = (i) => {
      const v = stretch.y[i], y = v === null ? NaN : Y(v);
      if (!Number.isFinite(y)) { pen = "M"; return; }
      parts.push(pen, X(stretch.x[i]).toFixed(1), " ", y.toFixed(1));
      pen = "L";
    };
    if (end - first <= 3 * width) {
      for (let i = first; i < end; i++) put(i);
      return parts.join("");
    }
    let i = first;
    while (i < end) {
      const column = Math.floor(X(stretch.x[i]));
      let low = i, high = i, last = i, hole = -1;
      for (; i < end && Math.floor(X(stretch.x[i])) === column; i++) {
        const v = stretch.y[i];
        if (v === null) { if (hole < 0) hole = i; continue; }
        if (stretch.y[low] === null || v < stretch.y[low]) low = i;
        if (stretch.y[high] === null || v > stretch.y[high]) high = i;
        last = i;
      }
      for (const j of [...new Set([low, high, last, ...(hole < 0 ? [] : [hole])])].sort((a, b) => a - b)) put(j);
    }
    return parts.join("");
  }

  // Shading never adds up: where incidents overlap, the gravest is seen. One that lasts to the end, or long, is
  // shaded weakly, and one that was seen on other signals weaker still, so that curves stay legible.
  function bandShapes(bands, X, top, { height, selected, lead }, name) {
    const rank = { critical: 2, warning: 1, info: 0 }, pieces = [], broad = 150;
    for (const b of bands) {
      const x0 = X(b.onset), x1 = Math.max(X(b.end), x0 + 2), first = b.precursor === null ? x0 : X(b.precursor);
      const here = b.signals.includes(name) || b.sign === name;
      const weak = (here ? 1 : 0.45) * (b.left ? 0.6 : 1) * (selected && selected !== b.letter ? 0.25 : 1);
      const long = selected !== b.letter && (b.lasts || x1 - x0 > broad) ? 0.45 : 1;
      if (first < x0) pieces.push({ from: first, to: x0, weight: 0.6 * weak, ...b });
      pieces.push({ from: x0, to: x1, weight: weak * long, ...b });
    }
    const edges = [...new Set(pieces.flatMap((p) => [p.from, p.to]))].sort((a, b) => a - b);
    const shapes = [];
    let last = null;
    let alive = [];
    const queue = pieces.sort((a, b) => a.from - b.from);
    let next = 0;
    for (let k = 0; k + 1 < edges.length; k++) {
      while (next < queue.length && queue[next].from <= edges[k]) alive.push(queue[next++]);
      alive = alive.filter((p) => p.to > edges[k]);
      if (!alive.length) { last = null; continue; }
      const top1 = alive.reduce((a, b) => (b.weight * (1 + rank[b.severity]) > a.weight * (1 + rank[a.severity]) ? b : a));
      const key = `${top1.severity} ${top1.weight}`;
      if (last && last.key === key) { last.to = edges[k + 1]; continue; }
      last = { key, from: edges[k], to: edges[k + 1], severity: top1.severity, weight: top1.weight };
      shapes.push(last);
    }
    const rects = shapes.map((p) => el("rect", { class: `band ${p.severity}`, x: p.from, y: top, width: p.to - p.from, height, "fill-opacity": p.weight.toFixed(2) }));
    for (const b of bands) {  // a fine line where each begins, since shading alone does not show it
      if (b.severity !== "info" && (b.signals.includes(name) || lead)) rects.push(el("line", { class: `begin ${b.severity}`, x1: X(b.onset), x2: X(b.onset), y1: top, y2: top + height }));
    }
    return rects;
  }

  function signs(band, X, top, height, panel) {
    const shapes = [], tall = panel.lead, own = band.sign === panel.name && !tall;
    const line = (at, name, label, side) => {
      shapes.push(el("line", { class: `sign ${name}`, x1: X(at), x2: X(at), y1: top, y2: top + height }));
      if (!tall && !(own && name === "first")) return;
      const left = side < 0 && X(at) - LEFT > 110;  // the first sign is named before its line, the onset behind it
      const row = side < 0 || band.precursor === null || band.precursor >= band.onset || X(band.precursor) - LEFT > 110 ? 0 : 1;
      shapes.push(el("text", { class: "flag", x: X(at) + (left ? -5 : 5), y: top + 13 + 13 * row, "text-anchor": left ? "end" : "start" }, `${label} ${format(at)}`));
    };
    if (band.precursor !== null && band.precursor < band.onset) line(band.precursor, "first", "first sign", -1);
    line(band.onset, "onset", "onset", 1);
    return shapes;
  }

  // Letters stand in a strip above the plot; where several would touch, the first told has the place
  // and says how many stand behind it.
  function letterShapes(bands, X, width, y, onPick) {
    const order = (b) => b.letter.length * 1000 + b.letter.charCodeAt(0) * 30 + (b.letter.charCodeAt(1) || 0);
    const placed = [];
    for (const b of [...bands].sort((a, c) => order(a) - order(c))) {
      const x = X(b.onset);
      if (x < LEFT - 1 || x > width - RIGHT + 1) continue;
      const near = placed.find((p) => Math.abs(p.x - x) < 17);
      if (near) near.more += 1; else placed.push({ b, x, more: 0 });
    }
    return placed.map(({ b, x, more }) => {
      const half = 7 + (b.letter.length > 1 ? 3 : 0);
      const node = el("g", { class: `pin ${b.severity}`, "data-pin": b.letter });
      node.append(el("rect", { x: x - half, y, width: 2 * half, height: 14, rx: 3 }),
        el("text", { x, y: y + 11, "text-anchor": "middle" }, b.letter),
        el("title", {}, b.headline + (more ? ` (and ${more} more here; zoom in)` : "")));
      if (more) node.append(el("circle", { class: "more", cx: x + half, cy: y + 1, r: 3 }));
      node.addEventListener("pointerdown", (event) => { event.stopPropagation(); onPick(b.letter); });
      return node;
    });
  }

  function eventShapes(events, X, range, y) {
    return events.filter((e) => e.step >= range[0] && e.step <= range[1]).map((e) => {
      const x = X(e.step);
      const node = el("path", { class: "event", d: `M${x - 4} ${y}L${x + 4} ${y}L${x} ${y - 7}Z` });
      node.append(el("title", {}, e.text));
      return node;
    });
  }

  function yAxis(svg, panel, Y, ticks, width, top, height) {
    for (const t of ticks) {
      const y = Y(t);
      if (y < top - 1 || y > top + height + 1) continue;
      svg.append(el("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y, y2: y }),
        el("text", { class: "tick", x: LEFT - 6, y: y + 4, "text-anchor": "end" }, format(t)));
      if (panel.perplexity) svg.append(el("text", { class: "tick", x: width - RIGHT + 6, y: y + 4 }, format(Math.exp(t), 3)));
    }
  }

  function xAxis(svg, range, X, width, bottom, labels, word) {
    for (const t of niceTicks(range[0], range[1], Math.max(3, Math.floor(width / 130)))) {
      svg.append(el("line", { class: "tickmark", x1: X(t), x2: X(t), y1: bottom, y2: bottom + 4 }));
      if (labels && X(t) > LEFT + 14) svg.append(el("text", { class: "tick", x: X(t), y: bottom + 16, "text-anchor": "middle" }, format(t, 7)));
    }
    if (labels) svg.append(el("text", { class: "unit", x: LEFT - 6, y: bottom + 16, "text-anchor": "end" }, word));
  }

  // The frame that every panel shares: its place on the page, its step axis, what moves over it.
  function frame(panel, view, top) {
    const { width, range } = view, bottom = top + view.height, inner = width - LEFT - RIGHT, room = inner - 2 * INSET;
    const X = (x) => LEFT + INSET + (room * (x - range[0])) / (range[1] - range[0]);
    const svg = el("svg", {
      viewBox: `0 0 ${width} ${bottom + (view.labels ? 22 : 5)}`, "data-panel": panel.name,
      "data-x0": range[0], "data-x1": range[1], role: "img", "aria-label": panel.title,
    });
    svg.append(el("rect", { class: "plot", x: LEFT, y: top, width: inner, height: view.height }));
    const hair = el("line", { class: "hair", x1: -9, x2: -9, y1: top, y2: bottom });
    const brush = el("rect", { class: "brush", x: 0, y: top, width: 0, height: view.height });
    const toX = (pixel) => range[0] + ((pixel - LEFT - INSET) / room) * (range[1] - range[0]);
    return { svg, hair, brush, X, toX, left: LEFT, right: width - RIGHT, top, bottom, inner };
  }

  // view: {width, height, range, bands, selected, events, lead, labels, word, onPick}; the lead panel, the
  // first, has the letters and what was done
  function draw(host, panel, view) {
    if (panel.strip) return strip(host, panel, view);
    const { width, range } = view, top = view.lead ? 22 : 6;
    const drawn = frame(panel, view, top), { svg, X, bottom, inner } = drawn;
    const id = `clip-${panel.name}`, clip = el("clipPath", { id });
    clip.append(el("rect", { x: LEFT, y: top, width: inner, height: view.height }));
    svg.append(clip);
    const layer = el("g", { "clip-path": `url(#${id})` });
    const chosen = view.bands.find((b) => b.letter === view.selected);
    if (panel.stretches.length || panel.dots.length) {
      const log = panel.scale === "log", [low, high] = extent(panel, range, log);
      const Y = (v) => (log && v <= 0 ? top + view.height - 1 : top + (view.height * (high - (log ? Math.log10(v) : v))) / (high - low));
      yAxis(svg, panel, Y, log ? logTicks(low, high) : niceTicks(low, high, view.height > 120 ? 5 : 3), width, top, view.height);
      layer.append(...bandShapes(view.bands, X, top, view, panel.name));
      layer.append(...lines(panel, range, X, Y, top, inner, chosen));
    } else {
      svg.append(el("text", { class: "empty", x: LEFT + inner / 2, y: top + view.height / 2 + 4, "text-anchor": "middle" }, "not recorded"));
    }
    if (chosen) layer.append(...signs(chosen, X, top, view.height, { name: panel.name, lead: view.lead }));
    svg.append(layer);
    if (view.lead) svg.append(...eventShapes(view.events, X, range, bottom), ...letterShapes(view.bands, X, width, 3, view.onPick));
    xAxis(svg, range, X, width, bottom, view.labels, view.word);
    svg.append(drawn.brush, drawn.hair);
    host.replaceChildren(svg);
    return drawn;
  }

  // What has nothing to show takes one line: not recorded, or one value throughout.
  function strip(host, panel, view) {
    const drawn = frame(panel, view, 1), { svg, inner, X, bottom } = drawn;
    const label = el("text", { class: "empty", x: LEFT + 10, y: bottom - 6 });
    label.append(el("tspan", { class: "what" }, panel.title), el("tspan", { dx: 8, class: panel.lost ? "lost" : "" }, panel.strip));
    svg.append(label);
    const chosen = view.bands.find((b) => b.letter === view.selected);
    if (chosen) svg.append(...signs(chosen, X, 1, view.height, { name: "" }).filter((n) => inside(n, inner)));
    if (view.labels) xAxis(svg, view.range, X, view.width, bottom, view.labels, view.word);
    svg.append(drawn.brush, drawn.hair);
    host.replaceChildren(svg);
    return drawn;
  }

  function inside(line, inner) {
    const x = Number(line.getAttribute("x1"));
    return x >= LEFT && x <= LEFT + inner;
  }

  function lines(panel, range, X, Y, top, inner, chosen) {
    const shapes = [];
    for (const s of [...panel.stretches].sort((a, b) => a.live - b.live)) {
      const name = `a${s.a % COLOURS}${s.live ? "" : " dead"}${chosen && chosen.a === s.a ? " focus" : ""}`;
      const dense = s.x.length > 2 * inner ? " dense" : "";
      shapes.push(el("path", { class: `curve ${name}${s.trial ? " trial" : ""}${dense}`, d: curve(s, range, X, Y, inner) }));
      const [first, end] = visible(s, range);
      const roomy = end - first < 2 || (X(s.x[end - 1]) - X(s.x[first])) / (end - first - 1) > 7;
      if (roomy) {
        for (let i = first; i < end; i++) if (s.y[i] !== null) shapes.push(el("circle", { class: `point ${name}`, cx: X(s.x[i]), cy: Y(s.y[i]), r: 2.4 }));
      }
      for (const b of s.bad) if (b >= range[0] && b <= range[1]) shapes.push(el("line", { class: "bad", x1: X(b), x2: X(b), y1: top, y2: top + 9 }));
    }
    for (const s of panel.dots) {
      const [first, end] = visible(s, range);
      if (end - first > inner / 8) {  // too many for circles: they would hide the curve
        shapes.push(el("path", { class: "curve dots", d: curve(s, range, X, Y, inner) }));
        continue;
      }
      for (let i = 0; i < s.x.length; i++) if (s.y[i] !== null) shapes.push(el("circle", { class: "dot", cx: X(s.x[i]), cy: Y(s.y[i]), r: 2.6 }));
    }
    if (panel.mark) shapes.push(el("circle", { class: "mark", cx: X(panel.mark[0]), cy: Y(panel.mark[1]), r: 4 }));
    return shapes;
  }

  // The mean of `width` neighboring points; what was not finite stays a gap and enters no mean.
  function smoothed(y, width) {
    const sum = [0], count = [0];
    for (let i = 0; i < y.length; i++) { sum.push(sum[i] + (y[i] ?? 0)); count.push(count[i] + (y[i] === null ? 0 : 1)); }
    const half = Math.floor(width / 2);
    return y.map((v, i) => {
      const low = Math.max(0, i - half), high = Math.min(y.length, i + width - half), n = count[high] - count[low];
      return v === null || !n ? null : (sum[high] - sum[low]) / n;
    });
  }

  // Nearest row to a position: on the final lineage where it reaches there, and off it.
  function nearest(panel, at) {
    const found = [];
    for (const s of panel.stretches) {
      if (!s.x.length || at < s.x[0] - 1e-9 || at > s.x[s.x.length - 1] + 1e-9) continue;
      const i = lowerBound(s.x, at);
      const j = i > 0 && (i === s.x.length || at - s.x[i - 1] < s.x[i] - at) ? i - 1 : i;
      found.push({ a: s.a, live: s.live, x: s.x[j], y: s.y[j] });
    }
    return found.sort((p, q) => q.live - p.live || Math.abs(p.x - at) - Math.abs(q.x - at));
  }

  return { draw, frame, xAxis, signs, nearest, smoothed, format, el, niceTicks, lowerBound };
})();
