"use strict";
// Draws per-block readings as a heat map: steps across, the first block at the foot. Every column of
// pixels shows the worst reading that falls into it. The darker, the further a block is from its own
// median in the bad direction; red is NaN or Inf. Blocks differ in level, and it is the change that counts.
const trimtabHeat = (() => {
  const { el, frame, xAxis, signs, format, lowerBound } = trimtabChart;

  // The parts to draw, the final lineage first; an incident's own attempt lies over it.
  function chosenParts(heat, chosen) {
    const live = heat.parts.filter((p) => p.live);
    const own = chosen ? heat.parts.filter((p) => p.a === chosen.a && !p.live) : [];
    const shown = [...live, ...own];
    return shown.length ? shown : heat.parts;
  }

  // How far readings lie from the median of their block, and the worst of all.
  function levels(heat) {
    if (heat.levels) return heat.levels;
    const medians = heat.medians;
    const ratio = medians.every((m) => m === null || m > 0) && heat.parts.every((p) => p.v.every((v) => v === null || v >= 0));
    const tiny = Math.min(...medians.filter((m) => m !== null)) * 1e-3;
    const away = (v, r) => {
      const by = ratio ? Math.log(Math.max(v, tiny) / medians[r]) : v - medians[r];
      return Math.max(0, heat.low ? -by : by);
    };
    let most = ratio ? Math.log(2) : 1e-12;
    const live = heat.parts.filter((p) => p.live);  // what was given up would leave the rest pale
    for (const p of live.length ? live : heat.parts) p.v.forEach((v, i) => { if (v !== null && medians[i % p.rows] !== null) most = Math.max(most, away(v, i % p.rows)); });
    heat.levels = { share: (v, r) => away(v, r) / most, ratio, most };
    return heat.levels;
  }

  function colours() {
    const style = getComputedStyle(document.documentElement);
    const hex = (name) => [1, 3, 5].map((i) => parseInt(style.getPropertyValue(name).trim().slice(i, i + 2), 16));
    const stops = [hex("--plot"), hex("--a0"), hex("--ink")];
    const bad = hex("--critical");
    return (share) => {
      if (share === null) return bad;
      const t = Math.min(Math.max(share, 0), 1) * 2, k = Math.min(Math.floor(t), 1);
      return stops[k].map((c, i) => Math.round(c + (stops[k + 1][i] - c) * (t - k)));
    };
  }

  const worse = (heat, a, b) => (a === undefined ? b : a === null || b === null ? null : heat.low ? Math.min(a, b) : Math.max(a, b));

  // One image, a pixel per column and block.
  function image(heat, parts, drawn, range) {
    const { share } = levels(heat);
    const width = Math.max(1, Math.round(drawn.inner)), rows = Math.max(...parts.map((p) => p.rows));
    const canvas = document.createElement("canvas");
    canvas.width = width;
    canvas.height = rows;
    const context = canvas.getContext("2d"), pixels = context.createImageData(width, rows), paint = colours();
    for (const p of parts) {
      const cells = new Array(width * rows);
      for (let i = 0; i < p.x.length; i++) {
        const to = i + 1 < p.x.length ? p.x[i + 1] : Math.max(p.last, p.x[i]) + (i ? p.x[i] - p.x[i - 1] : 1);
        if (to < range[0] || p.x[i] > range[1]) continue;
        const first = Math.max(0, Math.floor(drawn.X(p.x[i]) - drawn.left));
        const end = Math.min(width, Math.max(first + 1, Math.floor(drawn.X(to) - drawn.left)));
        for (let c = first; c < end; c++) {
          for (let r = 0; r < p.rows; r++) cells[r * width + c] = worse(heat, cells[r * width + c], p.v[i * p.rows + r]);
        }
      }
      for (let r = 0; r < rows; r++) {
        for (let c = 0; c < width; c++) {
          const v = cells[r * width + c];
          if (v === undefined) continue;
          pixels.data.set([...paint(v === null ? null : share(v, r)), 255], 4 * ((rows - 1 - r) * width + c));
        }
      }
    }
    context.putImageData(pixels, 0, 0);
    return canvas.toDataURL("image/png");
  }

  function draw(host, heat, view) {
    const drawn = frame(heat, view, 6), { svg, X, top, bottom, left, inner } = drawn;
    const chosen = view.bands.find((b) => b.letter === view.selected), parts = chosenParts(heat, chosen);
    const { ratio, most } = levels(heat), side = heat.low ? "below" : "above";
    const far = ratio ? `${format(Math.exp(most), 2)}\u00d7` : format(most, 2);
    drawn.said = `dark: up to ${far} ${side} the block's own median · red: NaN or Inf`;
    svg.append(el("image", { x: left, y: top, width: inner, height: view.height, preserveAspectRatio: "none", href: image(heat, parts, drawn, view.range), class: "heat" }));
    for (const [at, label] of [[bottom - 2, "1"], [top + 10, String(heat.layers)]]) {
      svg.append(el("text", { class: "tick", x: left - 6, y: at, "text-anchor": "end" }, label));
    }
    svg.append(el("text", { class: "tick", x: left - 6, y: (top + bottom) / 2 + 4, "text-anchor": "end" }, "block"));
    if (chosen) svg.append(...signs(chosen, X, top, view.height, heat).filter((n) => { const x = Number(n.getAttribute("x1") || n.getAttribute("x")); return x >= left && x <= left + inner; }));
    xAxis(svg, view.range, X, view.width, bottom, view.labels, view.word);
    svg.append(drawn.brush, drawn.hair);
    host.replaceChildren(svg);
    return drawn;
  }

  // The worst block at a position, in words.
  function readout(heat, at) {
    for (const p of heat.parts.filter((q) => at >= q.x[0] && at <= q.last).sort((q, r) => r.live - q.live)) {
      const i = Math.max(0, lowerBound(p.x, at + 1e-9) - 1), column = p.v.slice(i * p.rows, (i + 1) * p.rows);
      const bad = column.indexOf(null);
      const best = heat.low ? Math.min(...column) : Math.max(...column), row = bad >= 0 ? bad : column.indexOf(best);
      const block = Math.round(1 + (row * (heat.layers - 1)) / Math.max(1, p.rows - 1));
      return { step: p.x[i], text: `${heat.low ? "lowest" : "largest"}: block ${block}, ${bad >= 0 ? "NaN or Inf" : format(best)}` };
    }
    return null;
  }

  return { draw, readout };
})();
