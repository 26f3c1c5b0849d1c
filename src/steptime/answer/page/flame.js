// The flame graph: a click makes a box as wide as the picture, with its callers above it; a search lights what it finds
// and says how long that takes, what lies inside of another hit counted once.
(() => {
  const { byId, duration, find } = sheet;
  const LETTER = 6.7, FEWEST = 5;
  const pictures = find(".flame").map((flame) => ({
    flame, total: Number(flame.dataset.total), boxes: find(".box", flame).map((box) => {
      const [text, title] = [box.querySelector("text"), box.querySelector("title")];
      const start = parseFloat(box.getAttribute("x")), width = parseFloat(box.getAttribute("width"));
      const row = parseFloat(box.getAttribute("y"));
      return { box, text, name: text.textContent, words: (title ? title.textContent : text.textContent).toLowerCase(), start, width, row };
    }) }));
  if (!pictures.length) return;
  const label = ({ flame, boxes }) => boxes.forEach(({ box, text, name }) => {
    const letters = Math.floor(((parseFloat(box.getAttribute("width")) / 100) * flame.clientWidth - 6) / LETTER);
    text.textContent = name.length <= letters ? name : letters >= FEWEST ? `${name.slice(0, letters - 1)}…` : "";
  });
  const light = (hits, what) => {
    const lit = hits !== null && pictures.some(({ boxes }) => boxes.some(hits));
    let count = 0, sum = 0, whole = 0;
    pictures.forEach(({ boxes, total }) => {
      const found = boxes.filter((each) => hits && hits(each));
      boxes.forEach((each) => each.box.classList.toggle("unlit", lit && !found.includes(each)));
      const outer = found.filter((each) => !found.some((other) => other.row < each.row && other.start <= each.start + 1e-6
        && other.start + other.width >= each.start + each.width - 1e-6));
      count += found.length;
      sum += outer.reduce((spent, each) => spent + (each.width / 100) * total, 0);
      whole += found.length ? total : 0;
    });
    byId("flame-found").textContent = !hits ? "" : !count ? "Nothing matches"
      : `${what}${count === 1 ? "1 box" : `${count} boxes`}, ${duration(sum)} in all (${((100 * sum) / whole).toPrecision(2)} % of ${duration(whole)})`;
  };
  pictures.forEach((picture) => {
    const { flame, boxes } = picture;
    boxes.forEach(({ box, name, start, width, row }) => box.addEventListener("click", () => {
      boxes.forEach((other) => {
        const from = Math.max(other.start, start), to = Math.min(other.start + other.width, start + width);
        other.box.classList.toggle("outside", to - from <= width / 1000);
        other.box.setAttribute("x", `${(100 * (from - start)) / width}%`);
        other.box.setAttribute("width", `${Math.max((100 * (to - from)) / width, 0)}%`);
      });
      label(picture);
      byId("flame-search").value = "";
      light(row ? (each) => each.name === name : null, `${name}: `);
    }));
    new ResizeObserver(() => label(picture)).observe(flame);
  });
  byId("flame-search").addEventListener("input", (event) => {
    const words = event.target.value.toLowerCase().split(/\s+/).filter(Boolean);
    light(words.length ? (each) => each.row > 0 && words.every((word) => each.words.includes(word)) : null, "");
  });
})();
