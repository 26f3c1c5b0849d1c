// The flame graph: a click makes a box as wide as the picture, with its callers above it.
(() => {
  const { find } = sheet;
  find(".flame").forEach((flame) => {
    const boxes = find(".box", flame).map((box) => ({
      box, begin: parseFloat(box.getAttribute("x")), width: parseFloat(box.getAttribute("width")) }));
    boxes.forEach(({ box, begin, width }) => box.addEventListener("click", () => boxes.forEach((other) => {
      const from = Math.max(other.begin, begin), to = Math.min(other.begin + other.width, begin + width);
      other.box.classList.toggle("outside", to - from <= width / 1000);
      other.box.setAttribute("x", `${(100 * (from - begin)) / width}%`);
      other.box.setAttribute("width", `${Math.max((100 * (to - from)) / width, 0)}%`);
    })));
  });
})();
