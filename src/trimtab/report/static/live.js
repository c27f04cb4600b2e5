// The page of a run as `trimtab serve` gives it: rows as they come, finer ones when zoomed.
(() => {
  const page = window.trimtab, served = page.data.served, id = served.split("/").pop();
  const status = document.getElementById("live");
  let running = false, again = false, waiting = 0;

  async function panels() {
    if (running) { again = true; return; }
    running = true;
    try {
      do {
        again = false;
        const { state } = page, whole = page.isWhole();
        const query = new URLSearchParams({ width: Math.max(320, document.querySelector("main").clientWidth - 120) });
        if (!whole) { query.set("from", state.range[0]); query.set("to", state.range[1]); }
        const answer = await fetch(`${served}/panels?${query}`);
        if (answer.ok) page.replace(await answer.json());
      } while (again);
    } catch (error) {
      status.textContent = "not connected: what is shown may be old";
    } finally { running = false; }
  }

  // What the judge says now: head, cards and tables, as the server wrote them for this page.
  async function words() {
    const answer = await fetch(served);
    if (!answer.ok) return;
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    const data = fresh.getElementById("data");
    if (!data) return;
    for (const place of ["header.top", "#cards", "section.below", "footer"]) {
      const now = document.querySelector(place), then = fresh.querySelector(place);
      if (now && then && now.innerHTML !== then.innerHTML) now.replaceChildren(...then.childNodes);
    }
    document.querySelector("main").className = fresh.querySelector("main").className;
    page.judged(JSON.parse(data.textContent));
    panels();
  }

  const source = new EventSource("/events");
  let opened = false;
  source.onopen = () => {
    status.textContent = "live";
    status.className = "on";
    if (opened) words();  // what was missed
    opened = true;
  };
  source.onerror = () => { status.textContent = "not connected: what is shown may be old"; status.className = "off"; };
  source.onmessage = (message) => {
    const event = JSON.parse(message.data);
    if (event.id !== id && event.kind !== "list") return;
    if (event.kind === "verdict") words(); else panels();
  };
  window.addEventListener("pagehide", () => source.close());
  page.onZoom = () => { clearTimeout(waiting); waiting = setTimeout(panels, 30); };
  panels();
})();
