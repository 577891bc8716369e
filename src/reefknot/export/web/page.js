/**
 * The page: a pad to draw a digit on, the network that reads it, and the bytes that it is made of.
 *
 * Takes     `decode` of reef.js, and what `reefknot.export.html` puts in front: REEF (the bytes of the file), NETWORK (its
 *           layers, see `run`), PIXELS (width, mean, deviation, full ink), TEXTS (title, facts, footer).
 * Gives     a page that answers, and `reefknot(pixels)`, the outputs for pixels from 0 to 1.
 */

const { abs, ceil, exp, floor, max, min, sqrt } = Math;
const file = REEF;
const tensors = decode(file);
const values = {};
for (const { name, bytes } of tensors) values[name] = new Float32Array(bytes.buffer);
const [width, mean, deviation, full] = PIXELS;
const [title, facts, pad, keys, answer, bars, layers, map, list, end] = document.querySelectorAll("[id]:not(main)");
const add = (parent, kind, text = "") => {
  const element = document.createElement(kind);
  element.textContent = text;
  parent.append(element);
  return element;
};
[title, facts, end].map((element, i) => (element.textContent = TEXTS[i]));

// ---- the network ----

/**
 * Windows that slide over planes: convolutions, pooling, and dense layers, whose planes are of one pixel.
 * Without weights, the factor stands for all of them; a negative one means the maximum.
 */
const ONE = [1, 1];
const slide = (
  x,
  [name, factor, [inputs, height, width], [outputs, rows, columns], kernel = ONE, stride = ONE, groups = 1, padding = [0, 0], dilation = ONE],
) => {
  const weight = values[name + ".weight"];
  const bias = values[name + ".bias"];
  const per = inputs / groups;
  return new Float32Array(outputs * rows * columns).map((_, at) => {
    const column = at % columns;
    const row = floor(at / columns) % rows;
    const output = floor(at / columns / rows);
    const first = floor((output * groups) / outputs) * per;
    let place = output * per * kernel[0] * kernel[1];
    let sum = factor < 0 ? -Infinity : bias ? bias[output] : 0;
    for (let input = first; input < first + per; input++)
      for (let i = 0; i < kernel[0]; i++)
        for (let j = 0; j < kernel[1]; j++) {
          const k = weight ? weight[place++] : factor;
          if (!k) continue;
          const r = row * stride[0] + i * dilation[0] - padding[0];
          const c = column * stride[1] + j * dilation[1] - padding[1];
          if (r < 0 || c < 0 || r >= height || c >= width) continue;
          const value = x[(input * height + r) * width + c];
          sum = factor < 0 ? max(sum, value) : sum + k * value;
        }
    return sum;
  });
};

/** The pixels, and what each layer gives; a layer is a function of every element, or what `slide` takes. */
const run = (pixels) => {
  let x = pixels.map((pixel) => (pixel * full - mean) / deviation);
  return [pixels, ...NETWORK.map((layer) => (x = layer.map ? slide(x, layer) : x.map(layer)))];
};

window.reefknot = (pixels) => [...run(Float32Array.from(pixels)).at(-1)];

// ---- the drawing ----

let strokes = []; // lists of points between 0 and 1
let isExample; // a stroke begins anew

/** Draw the strokes as smooth lines, under a scale and a shift. */
const trace = (context, scale, x, y, pen) => {
  context.lineWidth = pen;
  context.lineCap = context.lineJoin = "round";
  context.strokeStyle = "#1d7fa3";
  context.clearRect(0, 0, 999, 999);
  context.beginPath();
  for (const stroke of strokes) {
    const points = stroke.map(([a, b]) => [a * scale + x, b * scale + y]);
    context.moveTo(...points[0]);
    points.map(([a, b], i) => {
      const [c, d] = points[i + 1] || [a, b];
      context.quadraticCurveTo(a, b, (a + c) / 2, (b + d) / 2);
    });
    context.lineTo(...points.at(-1));
  }
  context.stroke();
};

const small = document.createElement("canvas");
small.width = small.height = width;
const ink = small.getContext("2d", { willReadFrequently: true });

/** The drawing as MNIST has its digits: 20 of 28 pixels high or wide, its center of mass in the middle. */
const pixelsOf = () => {
  const pixels = new Float32Array(width * width);
  const points = strokes.flat();
  const [[left, top], [right, bottom]] = [min, max].map((f) => [0, 1].map((k) => f(...points.map((point) => point[k]))));
  const pen = width / 11;
  const scale = ((width * 20) / 28 - pen) / max(right - left, bottom - top, 0.1);
  let x = (width - (left + right) * scale) / 2;
  let y = (width - (top + bottom) * scale) / 2;
  for (let pass = points.length && 2; pass--; ) {
    let sum = 0;
    let across = 0;
    let down = 0;
    trace(ink, scale, x, y, pen);
    ink.getImageData(0, 0, width, width).data.map((level, i) => {
      if (i % 4 < 3) return;
      const place = i >> 2;
      pixels[place] = level / 255;
      sum += level;
      across += level * ((place % width) + 0.5);
      down += level * (floor(place / width) + 0.5);
    });
    x += width / 2 - across / sum;
    y += width / 2 - down / sum;
  }
  return pixels;
};

// Digits to begin with, from 0 on: points on a grid of ten by ten, with a space between strokes.
const EXAMPLES =
  "52331416386776745352,415158,23326273645536287878,2342627365455576684827,42356575 616468,7232344574766738282,5233252638586766553526,2272725548,624233345566675848373655646352,735233365673727568".split(",");

const example = (digit) => {
  strokes = digit < 10 ? EXAMPLES[digit].split(" ").map((stroke) => stroke.match(/../g).map(([x, y]) => [x / 10, y / 10])) : [];
  isExample = 1;
  show();
};

// ---- what is shown ----

const views = []; // functions of what the layers give

/** Planes of numbers side by side: blue above what an empty drawing gives, orange below. */
const view = (caption, planes, rows, columns, index) => {
  const figure = add(layers, "figure");
  const canvas = add(figure, "canvas");
  const across = min(planes.length, ceil(sqrt((planes.length * rows * 2) / columns)));
  canvas.width = across * (columns + 1) - 1;
  canvas.height = ceil(planes.length / across) * (rows + 1) - 1;
  canvas.style.width = canvas.width * (rows > 1 ? 4 : 8) + "px";
  add(figure, "figcaption", caption);
  const context = canvas.getContext("2d");
  views.push((results) => {
    const numbers = results[index].map((number, k) => number - nothing[index][k]);
    const image = context.createImageData(canvas.width, canvas.height);
    const most = numbers.reduce((a, b) => max(a, abs(b)), 1e-6);
    planes.map((plane, k) => {
      for (let i = 0; i < rows * columns; i++) {
        const number = numbers[plane * rows * columns + i];
        const x = (k % across) * (columns + 1) + (i % columns);
        const y = floor(k / across) * (rows + 1) + floor(i / columns);
        image.data.set([...(number > 0 ? [29, 127, 163] : [217, 112, 38]), (255 * abs(number)) / most], 4 * (y * canvas.width + x));
      }
    });
    context.putImageData(image, 0, 0);
  });
};

const nothing = run(new Float32Array(width * width));
const classes = nothing.at(-1).length;
view("the drawing", [0], width, width, 0);
NETWORK.map((layer, i) => {
  const weight = values[layer[0] + ".weight"];
  if (!weight || i > NETWORK.length - 2) return;
  const [planes, rows, columns] = layer[3];
  const inputs = weight.length / planes;
  const alive = [...Array(planes).keys()].filter((k) => weight.subarray(k * inputs, (k + 1) * inputs).some((w) => w));
  const last = NETWORK[i + 1].map ? i + 1 : i + 2; // with the activation that follows
  view(`${layer[0]}: ${alive.length} of ${planes} units left`, alive, rows, columns, last);
});

for (let k = 0; k < classes; k++) ["b", "i", "span"].map((kind) => add(bars, kind, kind == "b" ? k : ""));

const show = () => {
  const results = run(pixelsOf());
  const outputs = [...results.at(-1)];
  const most = max(...outputs);
  const powers = outputs.map((output) => exp(output - most));
  const isEmpty = !strokes[0];
  trace(pad.getContext("2d"), 560, 0, 0, 44);
  answer.textContent = isEmpty ? "?" : outputs.indexOf(most);
  powers.map((power, k) => {
    const share = (100 * power) / powers.reduce((a, b) => a + b);
    bars.children[3 * k + 1].style.setProperty("--share", isEmpty ? 0 : share + "%");
    bars.children[3 * k + 2].textContent = isEmpty ? "" : share.toFixed(1) + " %";
  });
  views.map((draw) => draw(results));
};

for (const key of [..."0123456789", "Clear"]) add(keys, "button", key).onclick = () => example(key);

let isDue; // once a frame is enough
const point = ({ offsetX, offsetY }) => {
  strokes.at(-1).push([offsetX / pad.clientWidth, offsetY / pad.clientHeight]);
  isDue ||= requestAnimationFrame(() => {
    isDue = 0;
    show();
  });
};
pad.onpointerdown = (event) => {
  pad.setPointerCapture(event.pointerId);
  if (isExample) strokes = [];
  isExample = 0;
  strokes.push([]);
  point(event);
};
pad.onpointermove = (event) => {
  if (pad.hasPointerCapture(event.pointerId)) point(event);
};
window.onkeydown = ({ key }) => {
  if (key in EXAMPLES) example(key);
};

// ---- the bytes ----

const columns = ceil(sqrt(file.length * 4));
const bytes = map.getContext("2d");
map.width = columns;
map.height = ceil(file.length / columns);
const parts = tensors.filter(({ start }, i) => !i || start >= tensors[i - 1].end);
parts.unshift({ name: "header", start: 0, end: parts[0].start });
parts.at(-1).end = file.length - 4;
parts.push({ name: "checksum", start: file.length - 4, end: file.length });
parts.filter(({ start, end }) => end > start).map(({ name, start, end }, k) => {
  const hue = k * 25 + 190;
  const colour = (byte) => `hsl(${hue} 35% ${35 + byte / 6}%)`;
  const item = add(list, "li");
  add(item, "b").style.background = colour(128);
  item.append(`${name} ${end - start}`);
  for (let i = start; i < end; i++) {
    bytes.fillStyle = colour(file[i]);
    bytes.fillRect(i % columns, floor(i / columns), 1, 1);
  }
});

example(3);
