(() => {
  "use strict";
  const root = document.documentElement;
  const colours = JSON.parse(document.getElementById("vega-theme").textContent);

  // Light and dark: as the system says, until somebody chooses.
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  try {
    const chosen = localStorage.getItem("graft-theme");
    if (chosen === "light" || chosen === "dark") root.dataset.theme = chosen;
  } catch (error) { /* a page may not be allowed to remember */ }
  document.getElementById("theme").addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try { localStorage.setItem("graft-theme", root.dataset.theme); } catch (error) { /* as above */ }
    drawAll();
  });
  system.addEventListener("change", () => { if (!root.dataset.theme) drawAll(); });

  // Tables are sorted by a click on a head: by numbers where there are numbers, what is missing last.
  const valueOf = (row, column) => {
    const cell = row.cells[column];
    const text = cell.dataset.value ?? cell.textContent.trim();
    const number = Number(text);
    return text === "" || text === "-" || text === "none" ? null : Number.isNaN(number) ? text : number;
  };
  const compare = (a, b) =>
    typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true });
  for (const button of document.querySelectorAll("th button")) {
    button.addEventListener("click", () => {
      const head = button.closest("th"), table = head.closest("table"), column = head.cellIndex;
      const words = head.classList.contains("word");
      const before = head.getAttribute("aria-sort");
      const direction = before === null ? (words ? "ascending" : "descending") : before === "ascending" ? "descending" : "ascending";
      for (const other of table.querySelectorAll("th")) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", direction);
      const sign = direction === "ascending" ? 1 : -1;
      const rows = [...table.tBodies[0].rows].map((row) => [valueOf(row, column), row]);
      rows.sort(([a], [b]) => (a === null || b === null ? (a === null) - (b === null) : sign * compare(a, b)));
      table.tBodies[0].append(...rows.map(([, row]) => row));
    });
  }

  for (const button of document.querySelectorAll(".copy")) {
    button.addEventListener("click", async () => {
      const code = button.parentElement.querySelector("code");
      try {
        await navigator.clipboard.writeText(code.textContent);
      } catch (error) { // a file that is opened from the disk may not reach the clipboard this way
        const range = document.createRange();
        range.selectNodeContents(code);
        getSelection().removeAllRanges();
        getSelection().addRange(range);
        document.execCommand("copy");
      }
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
  }

  for (const select of document.querySelectorAll(".confusions select")) {
    select.addEventListener("change", () => {
      select.closest("figure").querySelectorAll(".matrix").forEach((matrix, index) => { matrix.hidden = index !== select.selectedIndex; });
    });
  }

  const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
  const observer = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      for (const link of links.values()) link.classList.remove("here");
      links.get(entry.target.id)?.classList.add("here");
    }
  }, { rootMargin: "0px 0px -75% 0px" });
  document.querySelectorAll("main section").forEach((section) => observer.observe(section));

  // Figures.
  const themeOf = () => {
    const now = isDark() ? colours.dark : colours.light;
    const swapped = new Map(Object.keys(colours.light).map((name) => [colours.light[name], now[name]]));
    return JSON.parse(JSON.stringify(colours.theme), (key, value) => swapped.get(value) ?? value);
  };
  const room = document.createElement("canvas").getContext("2d");
  const lengthOf = (text) => { room.font = "11.5px sans-serif"; return room.measureText(text).width; };

  // A click on an entry of a legend hides its series, another one shows it again; entries wrap as there is room.
  const arrange = (width) => (vega) => {
    for (const mark of vega.marks ?? []) { // Vega-Lite forgets that the datum of a nearest point lies one level deeper
      const tooltip = mark.encode?.update?.isVoronoi && mark.encode.update.tooltip;
      if (tooltip) tooltip.signal = tooltip.signal.replace(/(?<!\.)datum\[/g, "datum.datum[");
    }
    for (const legend of vega.legends ?? []) {
      if (legend.type === "gradient" || !vega.signals?.some((signal) => signal.name === "hidden")) continue;
      const scale = vega.scales.find((entry) => entry.name === (legend.stroke ?? legend.fill));
      const longest = Math.min(Math.max(40, ...scale.domain.map?.((name) => lengthOf(String(name))) ?? [40]), 260, width - 110);
      legend.columns = Math.max(1, Math.floor((width - 20) / (longest + 44)));
      legend.labelLimit = longest + 4;
      legend.encode = legend.encode ?? {};
      for (const part of ["symbols", "labels"]) {
        const old = legend.encode[part] ?? {};
        legend.encode[part] = {
          ...old,
          interactive: true,
          update: { ...old.update, opacity: { signal: "indexof(hidden, datum.value) < 0 ? 1 : 0.3" }, cursor: { value: "pointer" } },
        };
      }
    }
    return vega;
  };
  const toggle = (view) => (event, item) => {
    if (!["legend-symbol", "legend-label"].includes(item?.mark?.role)) return;
    const name = item.datum.value, hidden = view.signal("hidden");
    view.signal("hidden", hidden.includes(name) ? hidden.filter((other) => other !== name) : [...hidden, name]).runAsync();
  };

  const views = new Map();
  async function draw(place) {
    const spec = JSON.parse(place.parentElement.querySelector("script.spec").textContent);
    const config = themeOf();
    const width = place.clientWidth;
    config.axisY = { ...config.axisY, labelLimit: Math.round(width * 0.4) };
    if (width < 480) config.axisX = { ...config.axisX, tickCount: 5 };
    const made = await vegaEmbed(place, spec, {
      config,
      renderer: "svg",
      actions: { export: { svg: true, png: true }, source: false, compiled: false, editor: false },
      downloadFileName: place.getAttribute("aria-label").replace(/[^\w]+/g, "-").toLowerCase(),
      scaleFactor: { png: 2, svg: 1 },
      tooltip: { theme: "graft" },
      patch: arrange(width),
    });
    if ("hidden" in made.view.getState().signals) {
      const hidden = views.get(place)?.hidden;
      if (hidden?.length) await made.view.signal("hidden", hidden).runAsync();
      made.view.addEventListener("click", toggle(made.view));
    }
    views.set(place, { made, width, get hidden() { return made.view.signal("hidden"); } });
  }
  async function drawAll() {
    if (!window.vegaEmbed) return;
    root.dataset.figures = "drawing";
    for (const place of document.querySelectorAll(".vega")) {
      const old = views.get(place);
      try { await draw(place); } catch (error) { place.textContent = `This figure could not be drawn: ${error.message}`; console.error(error); }
      old?.made.finalize();
    }
    root.dataset.figures = "drawn";
  }
  let waiting;
  addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => { if ([...views].some(([place, view]) => place.clientWidth !== view.width)) drawAll(); }, 250);
  });
  drawAll();
})();
