// Steps: a click or the arrow keys choose one; its figures are reported below.
(() => {
  const { byId, data, duration, find } = sheet;
  const chart = byId("series");
  if (!chart) return;
  const bars = find(".step", chart);
  const panel = byId("chosen");
  let known = null;
  const facts = () => {
    if (known) return known;
    const process = data().processes[0];
    const steady = process.step_ns.filter((_, step) => process.steady[step]).sort((a, b) => a - b);
    known = { process, series: process.series, steady, usual: process.case.step.duration.value };
    return known;
  };
  const kindOf = (step) => {
    const { process, series } = facts();
    const kind = series && series.names[series.kinds[step]];
    if (kind) return kind === "outlier" && process.steady[step] ? "slow" : kind;
    return process.steady[step] ? "steady" : step < process.case.step.warm_up ? "warm-up" : "excluded";
  };
  const change = (spent, usual) => {
    const percent = usual ? (100 * (spent - usual)) / usual : 0;
    return `${percent >= 0 ? "+" : "−"}${Math.abs(percent).toFixed(1)} % of the usual ${duration(usual)}`;
  };
  const tell = (bar) => {
    const { process, steady, usual } = facts();
    const step = Number(bar.dataset.slowest);
    const spent = process.step_ns[step];
    const faster = steady.filter((other) => other < spent).length;
    const place = process.steady[step] && steady.length > 1 ? `, longer than ${faster} of ${steady.length} steady steps` : "";
    const many = bar.dataset.first !== bar.dataset.last;
    const which = many ? `Steps ${Number(bar.dataset.first) + 1} to ${Number(bar.dataset.last) + 1}; the slowest, s` : "S";
    return `${which}tep ${step + 1}: ${duration(spent)}, ${kindOf(step)}${place}; ${change(spent, usual)}.`;
  };

  const make = (name, text, className) => {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    if (className) made.className = className;
    return made;
  };
  const categoryRow = (name, spent, usual, longest) => {
    const row = make("tr");
    const head = make("th");
    head.scope = "row";
    const kinds = ["compute", "communication", "copy", "unrecorded", "input", "sync", "compile", "overhead", "python", "unexplained"];
    const tone = kinds.includes(name) ? `tone-${name}` : "tone-other";
    head.append(make("i", "", `key ${tone}`), name);
    const bar = make("td", undefined, "meter");
    const filled = make("i", undefined, tone);
    filled.style.width = `${(100 * spent) / longest}%`;
    bar.append(filled);
    const more = spent - usual;
    const words = Math.abs(more) < 1 ? "usual" : `${more > 0 ? "+" : "−"}${duration(Math.abs(more))}`;
    row.append(head, bar, make("td", duration(spent), "number"), make("td", words, "number"));
    return row;
  };
  const categoriesOf = (step) => {
    const { process, series } = facts();
    const spent = series && series.spent.length ? series.spent[Math.floor(step / series.stride)] : [];
    const usual = new Map(process.case.categories.map((use) => [use.name, use.duration.value]));
    const table = byId("chosen-categories");
    table.tBodies[0].replaceChildren(...spent.map((value, index) =>
      categoryRow(series.categories[index], value, usual.get(series.categories[index]) || 0, Math.max(...spent))));
    table.hidden = !spent.length;
    const marks = series ? series.marks.filter((mark) => mark.step === step) : [];
    const notes = marks.map((mark) => `${mark.kind} of ${duration(mark.duration)} within it, counted in no step`);
    if (spent.length && series.stride > 1) notes.push(`categories: mean of ${series.stride} steps`);
    if (!spent.length && series && series.spent.length) notes.push("no categories: it is not a steady step");
    byId("chosen-notes").textContent = notes.join("; ");
    const closer = byId("closer");
    if (closer) closer.hidden = !(process.step_view && process.step_view.step === step);
  };

  let chosen = -1;
  const choose = (index) => {
    if (bars[chosen]) bars[chosen].classList.remove("on");
    chosen = Math.min(Math.max(index, 0), bars.length - 1);
    bars[chosen].classList.add("on");
    const words = tell(bars[chosen]);
    panel.textContent = words;
    categoriesOf(Number(bars[chosen].dataset.slowest));
    chart.setAttribute("aria-valuenow", String(chosen));
    chart.setAttribute("aria-valuetext", words);
  };
  chart.addEventListener("click", (event) => {
    const box = chart.getBoundingClientRect();
    const across = (100 * (event.clientX - box.left)) / box.width;
    const start = (bar) => parseFloat(bar.querySelector("rect").getAttribute("x"));
    choose(bars.filter((bar) => start(bar) <= across).length - 1);
  });
  chart.addEventListener("keydown", (event) => {
    const moves = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 10, PageDown: -10 };
    if (event.key === "Home") choose(0);
    else if (event.key === "End") choose(bars.length - 1);
    else if (event.key in moves) choose(chosen + moves[event.key]);
    else return;
    event.preventDefault();
  });
})();
