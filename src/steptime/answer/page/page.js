"use strict";
// What the page does beyond showing itself: everything but the timeline is readable without it. Text is only ever set
// as text. What the other parts of the script share is what this one returns.
const sheet = (() => {
  const root = document.documentElement;
  const find = (selector, inside = document) => Array.from(inside.querySelectorAll(selector));
  const byId = (name) => document.getElementById(name);
  root.classList.add("script");

  // Dark and light: the system's choice until the reader makes one.
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);
  const nameTheme = () => { byId("theme").textContent = isDark() ? "Light" : "Dark"; };
  byId("theme").addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; nameTheme(); });
  dark.addEventListener("change", nameTheme);
  nameTheme();

  // Copying; a page from a file may have no clipboard of its own.
  const copyText = async (text) => {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      const area = document.createElement("textarea");
      area.value = text;
      area.className = "unseen";
      document.body.append(area);
      area.select();
      const copied = document.execCommand("copy");
      area.remove();
      return copied;
    }
  };
  const answer = (button, copied) => {
    const before = button.dataset.words || (button.dataset.words = button.textContent);
    button.textContent = copied ? "Copied" : "Not copied";
    window.setTimeout(() => { button.textContent = before; }, 1500);
  };
  find("[data-copy]").forEach((button) =>
    button.addEventListener("click", async () => answer(button, await copyText(button.dataset.copy))));

  // Tables: sorted by raw values, filtered by words, copied as they are shown. A cell without a value of its own says it.
  const valueOf = (cell) => ("v" in cell.dataset ? cell.dataset.v : cell.textContent.trim());
  const compare = (left, right, number) => {
    if (left === right) return 0;
    if (left === "") return 1;
    if (right === "") return -1;
    return number ? right - left : left.localeCompare(right);
  };
  const sortBy = (table, head, column) => {
    const number = head.classList.contains("number");
    const again = head.hasAttribute("aria-sort");
    const turned = again && head.dataset.turned !== "yes";
    find("th", table.tHead).forEach((other) => { other.removeAttribute("aria-sort"); delete other.dataset.turned; });
    if (turned) head.dataset.turned = "yes";
    head.setAttribute("aria-sort", number === turned ? "ascending" : "descending");
    const value = (row) => valueOf(row.cells[column]);
    const empty = (row) => value(row) === "";
    const rows = find("tr", table.tBodies[0]).sort((a, b) => {
      const order = compare(value(a), value(b), number);
      return turned && !empty(a) && !empty(b) ? -order : order;
    });
    table.classList.toggle("flat", table.classList.contains("tree"));
    table.dataset.sorted = "yes";
    rows.forEach((row, index) => row.classList.toggle("more", index >= 12 && table.hasAttribute("data-short")));
    table.tBodies[0].append(...rows);
  };
  find("section.table table").forEach((table) => {
    table.classList.add("short");
    find("th", table.tHead).forEach((head, column) =>
      head.querySelector("button").addEventListener("click", () => sortBy(table, head, column)));
  });
  find("[data-all]").forEach((button) => button.addEventListener("click", () => {
    const short = byId(button.dataset.all).classList.toggle("short");
    button.setAttribute("aria-expanded", String(!short));
    const before = button.dataset.words || (button.dataset.words = button.textContent);
    button.textContent = short ? before : "Show fewer rows";
  }));
  find("[data-filter]").forEach((field) => field.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    const table = byId(field.dataset.filter);
    const all = document.querySelector(`[data-all="${field.dataset.filter}"]`);
    table.classList.toggle("short", !words.length && !(all && all.getAttribute("aria-expanded") === "true"));
    if (table.classList.contains("tree")) table.classList.toggle("flat", words.length > 0 || "sorted" in table.dataset);
    let left = 0;
    find("tr", table.tBodies[0]).forEach((row) => {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      left += row.hidden ? 0 : 1;
    });
    table.closest("section").querySelector(".none").hidden = left > 0;
  }));
  // Trees: a row folds those below it; as many levels are open as leave the table short.
  find("table.tree").forEach((table) => {
    const rows = find("tr", table.tBodies[0]);
    const depths = rows.map((row) => Number(row.dataset.depth));
    const parents = depths.map((depth, at) => depths.lastIndexOf(depth - 1, at));
    const opened = depths.map((depth) => depths.filter((other) => other <= depth + 1).length <= 24);
    const refresh = () => rows.forEach((row, at) => {
      let above = parents[at];
      while (above >= 0 && opened[above]) above = parents[above];
      row.classList.toggle("folded", above >= 0);
    });
    rows.forEach((row, at) => {
      if (!(depths[at + 1] > depths[at])) return;
      const button = document.createElement("button");
      button.type = "button";
      button.className = "fold";
      const name = () => {
        button.setAttribute("aria-expanded", String(opened[at]));
        button.setAttribute("aria-label", opened[at] ? "Fold" : "Unfold");
      };
      button.addEventListener("click", () => { opened[at] = !opened[at]; name(); refresh(); });
      name();
      row.cells[0].prepend(button);
    });
    refresh();
  });
  // A name that starts like a formula must not become one in a spreadsheet.
  const field = (text, number) => {
    const safe = !number && /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
    return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  const asCsv = (table) => {
    const heads = find("th", table.tHead);
    const rows = find("tr", table.tBodies[0]).filter((row) => !row.hidden);
    const lines = rows.map((row) =>
      Array.from(row.cells, (cell, column) => field(valueOf(cell), heads[column].classList.contains("number"))).join(","));
    return [heads.map((head) => head.dataset.raw).join(","), ...lines].join("\n") + "\n";
  };
  find("[data-csv]").forEach((button) =>
    button.addEventListener("click", async () => answer(button, await copyText(asCsv(byId(button.dataset.csv))))));

  // The data in the page, as it was written; read when it is first asked for.
  const written = byId("report").textContent;
  let parsed = null;
  const data = () => parsed || (parsed = JSON.parse(written));
  const download = (content, type, name) => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([content], { type }));
    link.download = name;
    link.click();
    window.setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };
  const save = byId("save");
  if (save) save.addEventListener("click", () => download(written, "application/json", "report.json"));

  // What a terminal could not print, a reader is not to be fooled by either: marks that reorder text, controls.
  const unprintable = /[\u0000-\u0009\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/g;
  const printable = (text) =>
    text.replace(unprintable, (sign) => `\\u${sign.charCodeAt(0).toString(16).padStart(4, "0")}`);
  const duration = (ns) => {
    const [size, unit] = ns < 1e3 ? [1, "ns"] : ns < 1e6 ? [1e3, "µs"] : ns < 1e9 ? [1e6, "ms"] : [1e9, "s"];
    return `${Number((ns / size).toPrecision(4))} ${unit}`;
  };
  // Words next to the pointer, for what has a title inside a picture.
  const tip = byId("tip");
  const showTip = (words, x, y) => {
    tip.textContent = words;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(6, Math.min(x + 14, window.innerWidth - box.width - 6))}px`;
    tip.style.top = `${y + 18 + box.height > window.innerHeight ? Math.max(6, y - box.height - 12) : y + 18}px`;
  };
  const hideTip = () => { tip.hidden = true; };
  find(".point, .step, .stack rect, .row svg, .lower-bound rect, .forest svg, .mark-of-step, .box").forEach((mark) => {
    const title = Array.from(mark.children).find((child) => child.localName === "title");
    if (!title) return;
    const words = title.textContent.trim();
    title.remove();
    mark.addEventListener("pointermove", (event) => showTip(words, event.clientX, event.clientY));
    mark.addEventListener("pointerleave", hideTip);
    mark.addEventListener("focus", () => {
      const box = mark.getBoundingClientRect();
      showTip(words, box.left, box.bottom);
    });
    mark.addEventListener("blur", hideTip);
  });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hideTip(); });

  // Labels of an axis that would overlap: the later one goes, but the last one stays.
  const untangle = (axis) => {
    const texts = find("text", axis).reverse();
    texts.forEach((text) => text.classList.remove("hidden"));
    const kept = [];
    [texts[0], texts[texts.length - 1], ...texts.slice(1, -1).reverse()].filter(Boolean).forEach((text) => {
      const box = text.getBoundingClientRect();
      const lies = kept.some((other) => other !== box && box.left < other.right + 4 && other.left < box.right + 4
        && box.top < other.bottom && other.top < box.bottom);
      if (lies) text.classList.add("hidden"); else kept.push(box);
    });
  };
  const axes = new ResizeObserver((entries) => entries.forEach(({ target }) => untangle(target)));
  find(".x-axis, .y-axis, .axis .track").forEach((axis) => axes.observe(axis));

  // Paper shows the answer and the findings, folds opened; with the button all of the page.
  const entire = byId("print-all");
  if (entire) entire.addEventListener("click", () => { root.classList.add("entire"); window.print(); });
  window.addEventListener("beforeprint", () => find("details:not([open])").forEach((fold) => {
    if (!root.classList.contains("entire")) return;
    fold.open = true;
    fold.dataset.printed = "yes";
  }));
  window.addEventListener("afterprint", () => root.classList.remove("entire"));
  window.addEventListener("afterprint", () => find("details[data-printed]").forEach((fold) => {
    fold.open = false;
    delete fold.dataset.printed;
  }));
  // Once it has been seen, nothing is left out of what a whole page is photographed as.
  window.addEventListener("load", () => window.setTimeout(() => root.classList.add("settled"), 400));
  // What may wait until the page has been seen.
  const later = (work) => window.requestAnimationFrame(() => window.setTimeout(work, 0));
  return { answer, byId, copyText, data, download, duration, find, hideTip, later, printable, root, showTip };
})();
