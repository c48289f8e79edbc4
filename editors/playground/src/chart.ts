/** Small charts, as SVG without inline styles. */

const NUM_POINTS = 60;
const WIDTH = 120;
const HEIGHT = 28;
const SVG = "http://www.w3.org/2000/svg";

/** A line of the last values; its top is the largest of them, or `floor` if that is more. */
export class Sparkline {
  readonly #line = document.createElementNS(SVG, "polyline");
  readonly #area = document.createElementNS(SVG, "polygon");
  #values: number[] = [];

  constructor(
    svg: Element,
    private readonly floor: number,
  ) {
    svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("aria-hidden", "true");
    svg.append(this.#area, this.#line);
  }

  add(value: number): void {
    this.#values = [...this.#values, value].slice(-NUM_POINTS);
    const top = Math.max(this.floor, ...this.#values);
    const step = WIDTH / (NUM_POINTS - 1);
    const first = WIDTH - (this.#values.length - 1) * step;
    const points = this.#values.map((each, i) => `${(first + i * step).toFixed(1)},${(HEIGHT - 1 - (each / top) * (HEIGHT - 3)).toFixed(1)}`);
    this.#line.setAttribute("points", points.join(" "));
    this.#area.setAttribute("points", `${first.toFixed(1)},${HEIGHT} ${points.join(" ")} ${WIDTH},${HEIGHT}`);
  }
}

/** A bar divided into parts; each is a rect in the SVG, in this order. */
export function divide(svg: Element, parts: readonly number[]): void {
  const total = parts.reduce((sum, each) => sum + each, 0);
  let x = 0;
  [...svg.querySelectorAll("rect")].forEach((rect, i) => {
    const width = total ? (100 * (parts[i] ?? 0)) / total : 0;
    rect.setAttribute("x", x.toFixed(2));
    rect.setAttribute("width", width.toFixed(2));
    x += width;
  });
}
