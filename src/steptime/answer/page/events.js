// The events of a timeline: from columns of text to rows, and what is reported of one of them.
(() => {
  const { duration, printable } = sheet;
  const numbers = (text) => (text ? Float64Array.from(text.split(" "), Number) : new Float64Array(0));
  const firstAfter = (sorted, value) => {
    let low = 0, high = sorted.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (sorted[middle] > value) high = middle; else low = middle + 1;
    }
    return low;
  };
  const rowsOf = (stepView) => {
    const columns = [stepView.gap_column, stepView.duration_column, stepView.label_column, stepView.detail_column].map(numbers);
    const rows = [];
    let at = 0;
    stepView.tracks.forEach((track, number) => track.rows.forEach((count, index) => {
      const [gaps, lengths, label, detail] = columns.map((column) => column.subarray(at, at + count));
      const start = new Float64Array(count), end = new Float64Array(count);
      let time = 0;
      for (let event = 0; event < count; event += 1) {
        start[event] = time + gaps[event];
        time = end[event] = start[event] + lengths[event];
      }
      rows.push({ number, track, index, start, end, label, detail, found: null, y: 0 });
      at += count;
    }));
    return rows;
  };

  const exact = (time, step) => {
    const size = Math.max(Math.abs(time), step);
    const [unit, name] = size < 1e3 ? [1, "ns"] : size < 1e6 ? [1e3, "µs"] : size < 1e9 ? [1e6, "ms"] : [1e9, "s"];
    const decimals = Math.max(0, Math.ceil(-Math.log10(step / unit) - 1e-9));
    return `${(time / unit).toFixed(decimals).replace("-", "−")} ${name}`;
  };
  const sourceWords = (source) =>
    `${source.file}:${source.line}${source.function ? ` in ${source.function}` : ""}${source.text ? `: ${source.text}` : ""}`;
  const factsAbout = (stepView, { row, event }) => {
    const label = stepView.labels[row.label[event]], detail = stepView.details[row.detail[event]];
    const facts = [["takes", duration(row.end[event] - row.start[event])],
      ["starts", `${exact(row.start[event] - stepView.start, 10)} into the step`]];
    if (row.track.kind === "category") facts.push(["", detail.note || "category of this time"]);
    else if (label.kind !== "other") facts.push(["kind", label.kind]);
    if (detail.operator) facts.push(["operator", detail.operator]);
    if (detail.shapes && !/^[[\], ]*$/.test(detail.shapes)) facts.push(["shapes", detail.shapes]);
    if (detail.formats && /\w/.test(detail.formats)) facts.push(["formats", detail.formats]);
    if (row.track.kind !== "category" && detail.note) facts.push(["", detail.note]);
    if (detail.source) facts.push(["line", sourceWords(detail.source)]);
    facts.push(["on", row.track.name]);
    return facts.map(([name, value]) => [name, printable(value)]);
  };
  Object.assign(sheet, { exact, factsAbout, firstAfter, rowsOf, sourceWords });
})();
