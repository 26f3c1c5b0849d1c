// The step as a Chrome trace: saved as a file, or handed to Perfetto's window by message. Perfetto answers PING with
// PONG once it listens and then takes { perfetto: { buffer, title } }; it is client-only, and this page sends nothing.
sheet.handOver = (excerpt, rows) => {
  const { byId, data, download } = sheet;
  const PERFETTO = "https://ui.perfetto.dev";
  const NAME = "step.pt.trace.json";
  const WAIT = window.location.protocol === "file:" ? 6000 : 15000;
  const OFTEN = 100;
  const PROCESSES = { account: "steptime", phase: "steptime", stream: "device", thread: "host", worker: "loader" };
  const numbers = [...new Set(Object.values(PROCESSES))];
  const status = byId("lanes-status");

  const argumentsOf = (detail) => {
    const made = {};
    if (detail.operator) made["launched by"] = detail.operator;
    if (detail.shapes) made["Input Dims"] = detail.shapes;
    if (detail.formats) made["Input type"] = detail.formats;
    if (detail.source) made.line = `${detail.source.file}:${detail.source.line}`;
    if (detail.note) made.note = detail.note;
    return made;
  };
  const traceText = () => {
    const zero = rows.reduce((least, row) => Math.min(least, row.begin.length ? row.begin[0] : 0), 0);
    const details = excerpt.details.map(argumentsOf);
    const events = [];
    numbers.forEach((name, pid) => events.push({ ph: "M", name: "process_name", pid, tid: 0, args: { name } }));
    let tid = 0;
    let track = -1;
    rows.forEach((row) => {
      const pid = numbers.indexOf(PROCESSES[row.track.kind] || "steptime");
      // The calls of a thread nest; what overlaps on a stream needs a row of its own.
      if (row.number !== track || row.track.kind !== "thread") {
        tid += 1;
        const name = row.index ? `${row.track.name} (${row.index + 1})` : row.track.name;
        events.push({ ph: "M", name: "thread_name", pid, tid, args: { name } });
        events.push({ ph: "M", name: "thread_sort_index", pid, tid, args: { sort_index: tid } });
      }
      track = row.number;
      row.begin.forEach((begin, event) => {
        const label = excerpt.labels[row.label[event]];
        events.push({ ph: "X", name: label.name, cat: label.kind, pid, tid, ts: (begin - zero) / 1000,
          dur: (row.end[event] - begin) / 1000, args: details[row.detail[event]] });
      });
    });
    return JSON.stringify({ displayTimeUnit: "ns", traceEvents: events });
  };

  const save = () => download(traceText(), "application/json", NAME);
  byId("lanes-save").addEventListener("click", () => {
    save();
    status.textContent = `Saved as ${NAME}.`;
  });
  const giveUp = () => {
    save();
    status.textContent = `Perfetto took no data from this page (browsers forbid it to pages that were opened as a file): ` +
      `the step was saved as ${NAME} instead. Drop it into Perfetto's window.`;
  };
  byId("lanes-perfetto").addEventListener("click", () => {
    const other = window.open(PERFETTO);
    if (!other) {
      status.textContent = "The browser opened no window: allow it for this page, or save the trace.";
      return;
    }
    status.textContent = "Waiting for Perfetto…";
    const since = Date.now();
    const heard = (event) => {
      if (event.source !== other || event.origin !== PERFETTO || event.data !== "PONG") return;
      stop();
      const buffer = new TextEncoder().encode(traceText()).buffer;
      const title = `One step of ${data().environment.command || data().source}`;
      other.postMessage({ perfetto: { buffer, title, fileName: NAME } }, PERFETTO);
      status.textContent = "Handed to Perfetto's window, which keeps it in this browser.";
    };
    const timer = window.setInterval(() => {
      if (!other.closed && Date.now() - since < WAIT) {
        other.postMessage("PING", PERFETTO);
        return;
      }
      stop();
      if (other.closed) status.textContent = "Perfetto's window was closed.";
      else giveUp();
    }, OFTEN);
    const stop = () => {
      window.clearInterval(timer);
      window.removeEventListener("message", heard);
    };
    window.addEventListener("message", heard);
  });
};
