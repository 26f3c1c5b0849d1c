// Traces saved as files, or handed to Perfetto's window by message: the whole ones that the page carries, and the step
// of the timeline. Perfetto answers PING with PONG once it listens and then takes { perfetto: { buffer, title } }; it is
// client-only, and this page sends nothing.
(() => {
  const { byId, data, download, find } = sheet;
  const PERFETTO = "https://ui.perfetto.dev";
  const WAIT = window.location.protocol === "file:" ? 6000 : 15000;
  const OFTEN = 100;

  // A trace is { what, name, type, title, content() }, status the element that reports the outcome.
  const save = ({ content, type, name }) => download(content(), type, name);
  const open = (trace, status) => {
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
      other.postMessage({ perfetto: { buffer: trace.content().buffer, title: trace.title, fileName: trace.name } }, PERFETTO);
      status.textContent = "Opened in Perfetto; the trace stays in this browser.";
    };
    const timer = window.setInterval(() => {
      if (!other.closed && Date.now() - since < WAIT) {
        other.postMessage("PING", PERFETTO);
        return;
      }
      stop();
      if (other.closed) {
        status.textContent = "Perfetto's window was closed.";
        return;
      }
      save(trace);
      status.textContent = `Perfetto accepts no data from a page opened as a file: ` +
        `${trace.what} was saved as ${trace.name} instead. Drop it into Perfetto's window.`;
    }, OFTEN);
    const stop = () => {
      window.clearInterval(timer);
      window.removeEventListener("message", heard);
    };
    window.addEventListener("message", heard);
  };
  const offer = (trace, opens, saves, status) => {
    opens.addEventListener("click", () => open(trace, status));
    saves.addEventListener("click", () => {
      save(trace);
      status.textContent = `Saved as ${trace.name}.`;
    });
  };
  const job = () => data().environment.command || data().source;

  // Base 85 in the order of RFC 1924, with a colon for the sign that opens markup: five signs are four bytes.
  const SIGNS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;:=>?@^_`{|}~";
  const bytesOf = (text, length) => {
    const value = new Uint8Array(128);
    [...SIGNS].forEach((sign, number) => { value[sign.charCodeAt(0)] = number; });
    const view = new DataView(new ArrayBuffer((text.length / 5) * 4));
    for (let at = 0; at < text.length; at += 5) {
      let word = 0;
      for (let sign = at; sign < at + 5; sign += 1) word = word * 85 + value[text.charCodeAt(sign)];
      view.setUint32((at / 5) * 4, word);
    }
    return new Uint8Array(view.buffer.slice(0, length));
  };

  find("[data-trace]").forEach((item) => {
    const part = (name) => item.querySelector(`[${name}]`);
    if (!part("data-open")) return;
    const trace = {
      what: "the trace", name: item.dataset.name, type: "application/gzip",
      content: () => bytesOf(byId(item.dataset.trace).textContent, Number(item.dataset.length)),
      get title() { return job(); },
    };
    offer(trace, part("data-open"), part("data-keep"), part("data-status"));
  });

  const PROCESSES = { category: "steptime", phase: "steptime", stream: "device", thread: "host", worker: "loader" };
  const numbers = [...new Set(Object.values(PROCESSES))];

  const argumentsOf = (detail) => {
    const made = {};
    if (detail.operator) made["launched by"] = detail.operator;
    if (detail.shapes) made["Input Dims"] = detail.shapes;
    if (detail.formats) made["Input type"] = detail.formats;
    if (detail.source) made.line = `${detail.source.file}:${detail.source.line}`;
    if (detail.note) made.note = detail.note;
    return made;
  };
  const traceOf = (stepView, rows) => {
    const zero = rows.reduce((least, row) => Math.min(least, row.start.length ? row.start[0] : 0), 0);
    const details = stepView.details.map(argumentsOf);
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
      row.start.forEach((start, event) => {
        const label = stepView.labels[row.label[event]];
        events.push({ ph: "X", name: label.name, cat: label.kind, pid, tid, ts: (start - zero) / 1000,
          dur: (row.end[event] - start) / 1000, args: details[row.detail[event]] });
      });
    });
    return JSON.stringify({ displayTimeUnit: "ns", traceEvents: events });
  };

  sheet.handOver = (stepView, rows) => offer({
    what: "the step", name: "step.pt.trace.json", type: "application/json",
    content: () => new TextEncoder().encode(traceOf(stepView, rows)),
    get title() { return `One step of ${job()}`; },
  }, byId("tracks-perfetto"), byId("tracks-save"), byId("tracks-status"));
})();
