// One step as a timeline: rows of events that do not overlap, drawn on a canvas. Only what is in view is looked at, and
// of what shares a pixel only one event is drawn, so that fifty thousand stay fluid. Names are drawn or set as text.
sheet.later(() => {
  const { byId, data, duration, exact, factsAbout, firstAfter, hideTip, printable, root, rowsOf, showTip, sourceWords } = sheet;
  const box = byId("tracks");
  if (!box) return;
  const canvas = byId("tracks-canvas");
  const inner = byId("tracks-inner");
  const strip = byId("tracks-overview");
  const pen = canvas.getContext("2d");
  const AXIS = 22, HEAD = 21, ROW = 17, TALL = 24, CROWD = 40;
  const CATEGORIES = ["compute", "communication", "copy", "unrecorded", "input", "sync", "compile", "overhead", "python", "unexplained"];
  const TONES = { operator: "--operator", range: "--rule", call: "--whole", python: "--soft", phase: "--rule", other: "--unexplained" };
  CATEGORIES.forEach((name) => { TONES[name] = `--${name}`; });

  const stepView = data().processes[0].step_view;
  const rows = rowsOf(stepView);
  const names = stepView.labels.map((label) => printable(label.name));
  const whole = { start: Math.min(0, stepView.start), end: Math.max(stepView.length, stepView.end, 1) };
  let view = { ...whole }, width = 0, height = 0, total = 0, letter = 6, chosen = null, waiting = false;
  let shown = [], tones = {}, inks = {}, colours = {};
  const closed = new Set();

  // Colours are the page's, light, dark or on paper.
  const readColours = () => {
    const style = getComputedStyle(root);
    const value = (name) => style.getPropertyValue(name).trim();
    colours = Object.fromEntries(["ink", "muted", "rule", "paper", "card", "soft"].map((name) => [name, value(`--${name}`)]));
    Object.entries(TONES).forEach(([kind, name]) => {
      pen.fillStyle = tones[kind] = value(name);
      const [r, g, b] = [1, 3, 5].map((place) => parseInt(String(pen.fillStyle).slice(place, place + 2), 16));
      inks[kind] = 0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#000000" : "#ffffff";
    });
  };

  // Rows that are shown, and where. A track that is closed shows its first row.
  const heightOf = (row) => (row.track.kind === "category" ? TALL : ROW);
  const place = () => {
    let y = AXIS, last = -1;
    shown = [];
    heads.forEach((head) => { head.hidden = true; });
    rows.forEach((row) => {
      if (row.number !== last) {
        last = row.number;
        heads[last].hidden = false;
        heads[last].style.top = `${y + 2}px`;
        heads[last].setAttribute("aria-expanded", String(!closed.has(last)));
        y += HEAD;
      } else if (closed.has(row.number)) {
        row.y = -1;
        return;
      }
      row.y = y;
      y += heightOf(row) + 1;
      shown.push(row);
    });
    total = y + 6;
    inner.style.height = `${total}px`;
    height = Math.min(total, box.clientHeight || total);
  };
  const heads = stepView.tracks.map((track, number) => {
    const head = document.createElement("button");
    head.type = "button";
    head.className = "track-name";
    head.textContent = printable(track.name);
    head.disabled = track.rows.length < 2;
    head.addEventListener("click", () => {
      if (!closed.delete(number)) closed.add(number);
      place();
      draw();
    });
    inner.append(head);
    return head;
  });

  const toX = (time) => ((time - view.start) / (view.end - view.start)) * width;
  const toTime = (x) => view.start + (x / width) * (view.end - view.start);
  const drawAxis = () => {
    const rough = (110 / width) * (view.end - view.start);
    const power = 10 ** Math.floor(Math.log10(Math.max(rough, 1)));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough) || power * 10;
    pen.fillStyle = colours.paper;
    pen.fillRect(0, 0, width, AXIS);
    pen.textAlign = "left";
    for (let time = Math.ceil((view.start - stepView.start) / step) * step; time < view.end - stepView.start; time += step) {
      const x = Math.round(toX(time + stepView.start)) + 0.5;
      pen.fillStyle = colours.rule;
      pen.fillRect(x, 0, 1, height);
      pen.fillStyle = colours.muted;
      pen.fillText(time ? exact(time, step) : "0", x + 4, 14);
    }
  };
  const drawBorders = () => {
    pen.fillStyle = colours.ink;
    [stepView.start, stepView.end].forEach((time) => { pen.fillRect(Math.round(toX(time)) - 0.5, 0, 1.5, height); });
    pen.globalAlpha = 0.06;
    const left = toX(stepView.start), right = toX(stepView.end);
    if (left > 0) pen.fillRect(0, AXIS, Math.min(left, width), height);
    if (right < width) pen.fillRect(Math.max(right, 0), AXIS, width, height);
    pen.globalAlpha = 1;
  };
  const within = (row, from, to) => !row.found || row.found[to] > row.found[from];
  const drawEvent = (row, event, y, tall, left, right, lit) => {
    const kind = stepView.labels[row.label[event]].kind;
    const tone = kind in tones ? kind : "other";
    pen.globalAlpha = lit ? 1 : 0.25;
    pen.fillStyle = tones[tone];
    const from = Math.max(left, -2), size = Math.max(Math.min(right, width + 2) - from, 1);
    pen.fillRect(from, y, size > 3 ? size - 0.6 : size, tall);
    if (size < 26) return;
    pen.fillStyle = inks[tone];
    const room = size - 8 - Math.max(0, -from), letters = Math.floor(room / letter), name = names[row.label[event]];
    if (letters < 2) return;
    const text = name.length <= letters ? name : `${name.slice(0, letters - 1)}…`;
    pen.fillText(text, Math.max(from, 0) + 4, y + tall / 2 + 4, room);
  };
  const drawRow = (row, y) => {
    const tall = heightOf(row), count = row.start.length;
    let event = firstAfter(row.end, view.start);
    if (event && row.start[event - 1] >= view.start) event -= 1; // of no length, at the very edge
    while (event < count && row.start[event] < view.end) {
      const left = toX(row.start[event]), right = toX(row.end[event]);
      let next = event + 1;
      if (right - left < 1) next = Math.max(next, firstAfter(row.end, toTime(Math.floor(left) + 1)));
      drawEvent(row, event, y, tall, left, right, within(row, event, Math.min(next, count)));
      event = next;
    }
    pen.globalAlpha = 1;
  };
  const drawChosen = (scrolled) => {
    if (!chosen || chosen.row.y < 0) return;
    const { row, event } = chosen;
    const left = toX(row.start[event]), right = toX(row.end[event]);
    if (right < 0 || left > width) return;
    const from = Math.max(left, -3), size = Math.max(Math.min(right, width + 3) - from, 2);
    pen.strokeStyle = colours.ink;
    pen.lineWidth = 2;
    pen.strokeRect(from - 1, row.y - scrolled - 1, size + 2, heightOf(row) + 2);
  };
  const drawOverview = () => {
    const brush = strip.getContext("2d"), tall = strip.clientHeight, ratio = window.devicePixelRatio || 1;
    strip.width = width * ratio;
    strip.height = tall * ratio;
    brush.scale(ratio, ratio);
    const across = (time) => ((time - whole.start) / (whole.end - whole.start)) * width;
    const row = rows[0];
    for (let event = 0; event < row.start.length;) {
      const left = across(row.start[event]), right = across(row.end[event]);
      brush.fillStyle = tones[stepView.labels[row.label[event]].kind] || tones.other;
      brush.fillRect(left, 3, Math.max(right - left, 1), tall - 6);
      const past = whole.start + ((Math.floor(left) + 1) / width) * (whole.end - whole.start);
      event = right - left < 1 ? Math.max(event + 1, firstAfter(row.end, past)) : event + 1;
    }
    const left = across(view.start), right = across(view.end);
    brush.fillStyle = colours.paper;
    brush.globalAlpha = 0.7;
    brush.fillRect(0, 0, left, tall);
    brush.fillRect(right, 0, width - right, tall);
    brush.globalAlpha = 1;
    brush.strokeStyle = colours.ink;
    brush.strokeRect(left + 0.5, 0.5, Math.max(right - left - 1, 2), tall - 1);
  };
  const paint = () => {
    waiting = false;
    const ratio = window.devicePixelRatio || 1, scrolled = box.scrollTop;
    width = inner.clientWidth;
    if (!width) return;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.height = `${height}px`;
    }
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.direction = "ltr";
    pen.font = `11px ${getComputedStyle(document.body).fontFamily}`;
    letter = pen.measureText("aten::convolution").width / 17;
    pen.fillStyle = colours.paper;
    pen.fillRect(0, 0, width, height);
    drawAxis();
    shown.forEach((row) => {
      const y = row.y - scrolled;
      if (y > AXIS - TALL && y < height) drawRow(row, y);
    });
    drawBorders();
    drawChosen(scrolled);
    if (scrolled) { // rows that went up behind the axis
      drawAxis();
    }
    heads.forEach((head) => { head.classList.toggle("gone", head.offsetTop - scrolled < AXIS - 4); });
    drawOverview();
    canvas.dataset.start = String(Math.round(view.start));
    canvas.dataset.end = String(Math.round(view.end));
    byId("tracks-range").textContent =
      `${duration(view.end - view.start)} in view, from ${exact(view.start - stepView.start, (view.end - view.start) / 100)}`;
  };
  const draw = () => {
    if (!waiting) window.requestAnimationFrame(paint);
    waiting = true;
  };

  // Zooming and moving.
  const look = (start, end) => {
    const span = Math.min(Math.max(end - start, 20), whole.end - whole.start);
    const middle = (start + end) / 2;
    const from = Math.min(Math.max(middle - span / 2, whole.start), whole.end - span);
    view = { start: from, end: from + span };
    draw();
  };
  const zoom = (factor, x = width / 2) => {
    const time = toTime(x);
    look(time - (time - view.start) * factor, time + (view.end - time) * factor);
  };
  const pan = (share) => {
    const by = share * (view.end - view.start);
    look(view.start + by, view.end + by);
  };
  const reveal = (row, event) => {
    const start = row.start[event], end = row.end[event], span = view.end - view.start;
    if (closed.delete(row.number)) place();
    if (end - start > span || end - start < span / 400) {
      const room = Math.max(3 * (end - start), 200);
      look(start - room, end + room);
    } else if (start < view.start || end > view.end) look((start + end - span) / 2, (start + end + span) / 2);
    if (row.y - box.scrollTop < AXIS + HEAD) box.scrollTop = row.y - AXIS - HEAD;
    else if (row.y + TALL > box.scrollTop + box.clientHeight) box.scrollTop = row.y + 2 * TALL - box.clientHeight;
    draw();
  };

  // What is under the pointer, and what it says.
  const at = (clientX, clientY) => {
    const frame = canvas.getBoundingClientRect();
    const x = clientX - frame.left, y = clientY - frame.top + box.scrollTop;
    if (clientY - frame.top < AXIS) return null;
    const row = shown.find((each) => y >= each.y && y <= each.y + heightOf(each));
    if (!row) return null;
    const event = firstAfter(row.end, toTime(x - 2));
    return event < row.start.length && row.start[event] <= toTime(x + 2) ? { row, event } : null;
  };
  const factsOf = (hit) => factsAbout(stepView, hit);
  const sumOf = (label) => {
    let count = 0, sum = 0;
    rows.forEach((row) => row.label.forEach((each, event) => {
      if (each === label) { count += 1; sum += row.end[event] - row.start[event]; }
    }));
    return `${count === 1 ? "once" : `${count} times`} in this step, ${duration(sum)} in all`;
  };
  const choose = (hit) => {
    chosen = hit;
    const panel = byId("tracks-event");
    if (!hit) {
      panel.replaceChildren();
      draw();
      return;
    }
    const title = document.createElement("b");
    title.textContent = names[hit.row.label[hit.event]];
    const list = document.createElement("dl");
    [...factsOf(hit), ["alike", sumOf(hit.row.label[hit.event])]].forEach(([name, value]) => {
      const pair = document.createElement("div"), term = document.createElement("dt"), words = document.createElement("dd");
      term.textContent = name || "\u00a0";
      words.textContent = value;
      pair.append(term, words);
      list.append(pair);
    });
    panel.replaceChildren(title, list);
    draw();
  };
  const step = (by) => {
    if (!chosen) {
      const row = shown.find((each) => each.start.length);
      const event = row ? Math.min(firstAfter(row.end, view.start), row.start.length - 1) : 0;
      if (row) choose({ row, event });
    } else {
      const event = Math.min(Math.max(chosen.event + by, 0), chosen.row.start.length - 1);
      choose({ row: chosen.row, event });
    }
    if (chosen) reveal(chosen.row, chosen.event);
  };
  const climb = (by) => {
    if (!chosen) return step(0);
    const { row, event } = chosen;
    const next = shown[shown.indexOf(row) + by];
    if (!next) return undefined;
    const middle = (Math.max(row.start[event], view.start) + Math.min(row.end[event], view.end)) / 2;
    choose({ row: next, event: Math.min(firstAfter(next.end, middle), next.start.length - 1) });
    return reveal(next, chosen.event);
  };

  // Searching: in names, operators, shapes and lines.
  const field = byId("tracks-search");
  const search = () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    const searching = words.length > 0;
    const reported = stepView.details.map((detail) =>
      `${detail.operator} ${detail.shapes} ${detail.note} ${detail.source ? sourceWords(detail.source) : ""}`.toLowerCase());
    const lower = names.map((name) => name.toLowerCase());
    let count = 0, sum = 0;
    rows.forEach((row) => {
      row.found = null;
      if (!searching) return;
      row.found = new Int32Array(row.start.length + 1);
      for (let event = 0; event < row.start.length; event += 1) {
        const name = lower[row.label[event]], more = reported[row.detail[event]];
        const hit = words.every((word) => name.includes(word) || more.includes(word));
        row.found[event + 1] = row.found[event] + (hit ? 1 : 0);
        if (hit) { count += 1; sum += row.end[event] - row.start[event]; }
      }
    });
    if (!count) rows.forEach((row) => { row.found = null; }); // nothing to light: nothing is dimmed
    byId("tracks-found").textContent = !searching ? "" : count ? `${count} found, ${duration(sum)}` : "Nothing matches";
    draw();
  };
  const go = (by) => {
    const hits = [];
    rows.forEach((row) => {
      for (let event = 0; row.found && event < row.start.length; event += 1)
        if (row.found[event + 1] > row.found[event]) hits.push({ row, event });
    });
    const inside = hits.filter(({ row, event }) => row.end[event] > stepView.start && row.start[event] < stepView.end);
    const ordered = inside.length ? inside : hits; // those of the step first: what is around it belongs to others
    if (!ordered.length) return;
    ordered.sort((one, other) => one.row.start[one.event] - other.row.start[other.event]);
    const now = chosen ? ordered.findIndex((hit) => hit.row === chosen.row && hit.event === chosen.event) : -1;
    const next = ordered[(now + by + ordered.length + (now < 0 && by < 0 ? 1 : 0)) % ordered.length];
    choose(next);
    reveal(next.row, next.event);
  };
  field.addEventListener("input", search);
  field.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    go(event.shiftKey ? -1 : 1);
    event.preventDefault();
  });

  // Pointer, wheel and keys.
  let drag = null, pinch = null;
  const touches = new Map();
  const spread = () => {
    const [one, other] = [...touches.values()], left = canvas.getBoundingClientRect().left;
    return { apart: Math.max(Math.abs(one - other), 8), middle: (one + other) / 2 - left };
  };
  const lift = (event) => {
    touches.delete(event.pointerId);
    if (touches.size < 2) pinch = null;
  };
  canvas.addEventListener("pointerdown", (event) => {
    if (event.pointerType === "touch") touches.set(event.pointerId, event.clientX);
    if (touches.size === 2) {
      const { apart, middle } = spread();
      pinch = { apart, time: toTime(middle), span: view.end - view.start };
      drag = null;
      return;
    }
    drag = { x: event.clientX, start: view.start, end: view.end, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (touches.has(event.pointerId)) touches.set(event.pointerId, event.clientX);
    if (pinch) { // what was between the fingers stays between them
      const { apart, middle } = spread(), span = (pinch.span * pinch.apart) / apart;
      hideTip();
      look(pinch.time - (middle / width) * span, pinch.time + (1 - middle / width) * span);
      return;
    }
    if (drag && (drag.moved || Math.abs(event.clientX - drag.x) > 4)) {
      const by = ((event.clientX - drag.x) / width) * (drag.end - drag.start);
      drag.moved = true;
      hideTip();
      look(drag.start - by, drag.end - by);
      return;
    }
    const hit = at(event.clientX, event.clientY);
    canvas.classList.toggle("hit", hit !== null);
    if (!hit) return hideTip();
    const lines = factsOf(hit).map(([name, value]) => (name ? `${name} ${value}` : value));
    return showTip([names[hit.row.label[hit.event]], ...lines].join("\n"), event.clientX, event.clientY);
  });
  canvas.addEventListener("pointerleave", hideTip);
  canvas.addEventListener("pointercancel", (event) => { lift(event); drag = null; });
  canvas.addEventListener("pointerup", (event) => {
    const pressed = drag !== null, moved = pressed && drag.moved;
    lift(event);
    drag = null;
    if (pressed && !moved) choose(at(event.clientX, event.clientY));
  });
  canvas.addEventListener("dblclick", (event) => {
    const hit = at(event.clientX, event.clientY);
    if (hit) focusOn(hit);
  });
  const focusOn = ({ row, event }) => {
    const room = Math.max((row.end[event] - row.start[event]) * 0.1, 10);
    look(row.start[event] - room, row.end[event] + room);
  };
  canvas.addEventListener("wheel", (event) => {
    if (event.ctrlKey || event.metaKey) zoom(1.0022 ** event.deltaY, event.clientX - canvas.getBoundingClientRect().left);
    else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan((event.deltaX || event.deltaY) / width);
    else return;
    hideTip();
    event.preventDefault();
  }, { passive: false });
  const keys = {
    "+": () => zoom(0.5), "=": () => zoom(0.5), w: () => zoom(0.5), "-": () => zoom(2), s: () => zoom(2),
    a: () => pan(-0.2), d: () => pan(0.2), 0: () => look(whole.start, whole.end), Home: () => look(whole.start, whole.end),
    ArrowRight: () => step(1), ArrowLeft: () => step(-1), ArrowDown: () => climb(1), ArrowUp: () => climb(-1),
    Enter: () => chosen && focusOn(chosen), Escape: () => choose(null), n: () => go(1), N: () => go(-1),
    "/": () => field.focus(),
  };
  canvas.addEventListener("keydown", (event) => {
    if (!(event.key in keys) || event.ctrlKey || event.metaKey || event.altKey) return;
    keys[event.key]();
    event.preventDefault();
  });
  const buttons = { "tracks-in": () => zoom(0.5), "tracks-out": () => zoom(2), "tracks-all": keys.Home,
    "tracks-left": () => pan(-0.3), "tracks-right": () => pan(0.3), "tracks-next": () => go(1) };
  Object.entries(buttons).forEach(([name, act]) => byId(name).addEventListener("click", act));
  const seek = (event) => {
    if (!event.buttons && event.type === "pointermove") return;
    const frame = strip.getBoundingClientRect();
    const time = whole.start + ((event.clientX - frame.left) / frame.width) * (whole.end - whole.start);
    look(time - (view.end - view.start) / 2, time + (view.end - view.start) / 2);
  };
  strip.addEventListener("pointerdown", seek);
  strip.addEventListener("pointermove", seek);
  box.addEventListener("scroll", draw);

  const restyle = () => { readColours(); draw(); };
  new MutationObserver(restyle).observe(root, { attributes: true, attributeFilter: ["data-theme"] });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", restyle);
  new ResizeObserver(() => { place(); draw(); }).observe(box);
  let theme, printing = false;
  window.addEventListener("beforeprint", () => { // ink on paper, whatever the screen shows
    if (printing) return;
    printing = true;
    theme = root.dataset.theme;
    root.dataset.theme = "light";
    readColours();
    paint();
  });
  window.addEventListener("afterprint", () => {
    printing = false;
    if (theme === undefined) delete root.dataset.theme; else root.dataset.theme = theme;
    restyle();
  });
  if (rows.length > CROWD) stepView.tracks.forEach((track, number) => {
    if (track.kind === "worker" || (track.kind === "thread" && /^Thread /.test(track.name))) closed.add(number);
  });
  readColours();
  place();
  draw();
  sheet.handOver(stepView, rows);
});
