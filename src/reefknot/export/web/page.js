/**
 * The page: an image is drawn or chosen, the network reads it, and the bytes that it is made of are shown.
 *
 * Takes     `decode` of reef.js, and what `reefknot.export.html` puts in front: REEF (the bytes of the file), NETWORK (its
 *           operations, see `run`), VIEWS (name, result and planes of layers to show), LABELS (of classes, or none), PIXELS
 *           (channels, height, width, means, deviations, full ink), TEXTS (title, facts, footer).
 * Gives     a page that answers, and `reefknot(pixels)`, the outputs for pixels from 0 to 1, channel by channel.
 */

const { abs, ceil, exp, floor, max, min, sqrt } = Math;
const file = REEF;
const tensors = decode(file);
const found = {};
for (const { name, bytes } of tensors) found[name] = bytes.buffer;
const floats = (name) => found[name] && new Float32Array(found[name]);
const [channels, height, width, means, deviations, full] = PIXELS;
const size = height * width;
const [title, facts, pad, hint, keys, answer, bars, layers, map, list, end] = document.querySelectorAll("[id]:not(main)");
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
  const weight = floats(name + ".weight");
  const bias = floats(name + ".bias");
  const per = inputs / groups;
  const area = rows * columns;
  const out = new Float32Array(outputs * area);
  for (let output = 0, place = 0; output < outputs; output++) {
    const first = floor((output * groups) / outputs) * per;
    out.fill(factor < 0 ? -Infinity : bias ? bias[output] : 0, output * area, (output + 1) * area);
    for (let input = first; input < first + per; input++)
      for (let i = 0; i < kernel[0]; i++)
        for (let j = 0; j < kernel[1]; j++) {
          const k = weight ? weight[place++] : factor;
          if (!k) continue;
          for (let row = 0; row < rows; row++) {
            const r = row * stride[0] + i * dilation[0] - padding[0];
            if (r < 0 || r >= height) continue;
            let at = output * area + row * columns;
            const end = at + columns;
            for (let c = j * dilation[1] - padding[1]; at < end; at++, c += stride[1]) {
              if (c < 0 || c >= width) continue;
              const value = x[(input * height + r) * width + c];
              out[at] = factor < 0 ? max(out[at], value) : out[at] + k * value;
            }
          }
        }
  }
  return out;
};

/** The input, and what each operation gives: it is what `slide` takes, or a function of the result before, and of all. */
const run = (pixels) => {
  let x = pixels.map((pixel, i) => {
    const channel = floor(i / size);
    return (pixel * full - means[channel % means.length]) / deviations[channel % deviations.length];
  });
  const results = [x];
  for (const layer of NETWORK) results.push((x = layer.map ? slide(x, layer) : layer(x, results, floats)));
  return results;
};

window.reefknot = (pixels) => [...run(Float32Array.from(pixels)).at(-1)];

// ---- the drawing, or an image ----

let strokes = []; // lists of points between 0 and 1
let isExample; // a stroke begins anew
let picture; // an image that was chosen
let isInverted;

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
small.width = width;
small.height = height;
const ink = small.getContext("2d", { willReadFrequently: true });

/** The drawing as MNIST has its digits: 20 of 28 pixels high or wide, its center of mass in the middle. */
const drawn = () => {
  const pixels = new Float32Array(size);
  const points = strokes.flat();
  const [[left, top], [right, bottom]] = [min, max].map((f) => [0, 1].map((k) => f(...points.map((point) => point[k]))));
  const side = min(width, height);
  const pen = side / 11;
  const scale = ((side * 20) / 28 - pen) / max(right - left, bottom - top, 0.1);
  let x = (width - (left + right) * scale) / 2;
  let y = (height - (top + bottom) * scale) / 2;
  for (let pass = points.length && 2; pass--; ) {
    let sum = 0;
    let across = 0;
    let down = 0;
    trace(ink, scale, x, y, pen);
    ink.getImageData(0, 0, width, height).data.map((level, i) => {
      if (i % 4 < 3) return;
      const place = i >> 2;
      pixels[place] = level / 255;
      sum += level;
      across += level * ((place % width) + 0.5);
      down += level * (floor(place / width) + 0.5);
    });
    x += width / 2 - across / sum;
    y += height / 2 - down / sum;
  }
  return pixels;
};

/** The middle of the image that was chosen, on white, channel by channel; with one channel, its brightness. */
const chosen = () => {
  const scale = max(width / picture.width, height / picture.height);
  const sizes = [picture.width * scale, picture.height * scale];
  ink.fillStyle = "#fff";
  ink.fillRect(0, 0, width, height);
  ink.imageSmoothingQuality = "high";
  ink.drawImage(picture, (width - sizes[0]) / 2, (height - sizes[1]) / 2, ...sizes);
  const { data } = ink.getImageData(0, 0, width, height);
  return new Float32Array(channels * size).map((_, i) => {
    const [red, green, blue] = data.subarray((i % size) * 4);
    const level = (channels > 1 ? [red, green, blue][floor(i / size)] : 0.299 * red + 0.587 * green + 0.114 * blue) / 255;
    return isInverted ? 1 - level : level;
  });
};

/** Pixels as they are, on the pad. */
const paint = (pixels, context) => {
  const image = ink.createImageData(width, height);
  image.data.forEach((_, i) => (image.data[i] = i % 4 > 2 ? 255 : 255 * pixels[((i % 4) % channels) * size + (i >> 2)]));
  ink.putImageData(image, 0, 0);
  context.imageSmoothingEnabled = 0;
  context.drawImage(small, 0, 0, pad.width, pad.height);
};

const choose = async (blob) => {
  if (!blob) return;
  try {
    picture = await createImageBitmap(blob);
    strokes = [];
    isInverted = 0;
    hint.textContent = HINT;
  } catch {
    hint.textContent = "This browser cannot read that file as an image.";
  }
  show();
};

// Digits to begin with, from 0 on: points on a grid of ten by ten, with a space between strokes.
const EXAMPLES =
  "52331416386776745352,415158,23326273645536287878,2342627365455576684827,42356575 616468,7232344574766738282,5233252638586766553526,2272725548,624233345566675848373655646352,735233365673727568".split(",");

const example = (digit) => {
  strokes = digit < 10 ? EXAMPLES[digit].split(" ").map((stroke) => stroke.match(/../g).map(([x, y]) => [x / 10, y / 10])) : [];
  isExample = 1;
  picture = isInverted = 0;
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
  canvas.style.width = canvas.width * (rows < 2 ? 8 : VIEWS[6] ? 2 : 4) + "px";
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

const nothing = run(new Float32Array(channels * size));
const classes = nothing.at(-1).length;
const isDrawn = channels < 2;
const isDigits = isDrawn && classes == 10 && !LABELS[0];
const rows = min(classes, classes > 20 ? 10 : 20); // of many classes, the most probable
if (isDrawn) view("the drawing", [0], height, width, 0);
for (const [name, result, planes, rows, columns] of VIEWS) {
  const weight = floats(name + ".weight");
  const inputs = weight.length / planes;
  const alive = [...Array(planes).keys()].filter((k) => weight.subarray(k * inputs, (k + 1) * inputs).some((w) => w));
  view(`${name}: ${alive.length} of ${planes} units left`, alive, rows, columns, result);
}

for (let k = 0; k < rows; k++) ["b", "i", "span"].map((kind) => add(bars, kind));
if (LABELS[0]) answer.style.fontSize = "2.5rem";

const show = () => {
  const pixels = picture ? chosen() : isDrawn ? drawn() : new Float32Array(channels * size);
  const results = run(pixels);
  const outputs = [...results.at(-1)];
  const most = max(...outputs);
  const powers = outputs.map((output) => exp(output - most));
  const isEmpty = !strokes[0] && !picture;
  const context = pad.getContext("2d");
  trace(context, 560, 0, 0, 44);
  if (picture) paint(pixels, context);
  invert.hidden = !picture || !isDrawn;
  answer.textContent = isEmpty ? "?" : nameOf(outputs.indexOf(most));
  const sum = powers.reduce((a, b) => a + b);
  const order = [...powers.keys()];
  if (classes > 20) order.sort((a, b) => powers[b] - powers[a]);
  for (let k = 0; k < rows; k++) {
    const share = (100 * powers[order[k]]) / sum;
    const [label, bar, text] = [0, 1, 2].map((i) => bars.children[3 * k + i]);
    label.textContent = isEmpty && classes > 20 ? "" : nameOf(order[k]);
    bar.style.setProperty("--share", isEmpty ? 0 : share + "%");
    text.textContent = isEmpty ? "" : share.toFixed(1) + " %";
  }
  views.map((draw) => draw(results));
};

const nameOf = (k) => LABELS[k] ?? k;
const HINT = isDigits ? "Draw a digit, or choose one:" : (isDrawn ? "Draw, choose" : "Choose") + ", paste or drop an image:";
hint.textContent = HINT;
pad.height = (560 * height) / width;

const input = document.createElement("input");
input.type = "file";
input.accept = "image/*";
input.onchange = () => choose(input.files[0]);
if (isDigits) for (const key of "0123456789") add(keys, "button", key).onclick = () => example(key);
if (isDrawn) add(keys, "button", "Clear").onclick = () => example(10);
const invert = add(keys, "button", "Invert");
invert.onclick = () => {
  isInverted = !isInverted;
  show();
};
add(keys, "button", "Choose an image").onclick = () => input.click();
if (!isDrawn) {
  pad.onclick = () => input.click();
  pad.style.cursor = "pointer";
}
document.onpaste = ({ clipboardData }) => choose(clipboardData.files[0]);
window.ondragover = (event) => event.preventDefault();
window.ondrop = (event) => {
  event.preventDefault();
  choose(event.dataTransfer.files[0]);
};

let isDue; // once a frame is enough
const point = ({ offsetX, offsetY }) => {
  strokes.at(-1).push([offsetX / pad.clientWidth, offsetY / pad.clientHeight]);
  isDue ||= requestAnimationFrame(() => {
    isDue = 0;
    show();
  });
};
pad.onpointerdown = (event) => {
  if (!isDrawn) return;
  pad.setPointerCapture(event.pointerId);
  if (isExample || picture) strokes = [];
  isExample = picture = 0;
  strokes.push([]);
  point(event);
};
pad.onpointermove = (event) => {
  if (pad.hasPointerCapture(event.pointerId)) point(event);
};
window.onkeydown = ({ key }) => {
  if (isDigits && key in EXAMPLES) example(key);
};

// ---- the bytes ----

const columns = ceil(sqrt(file.length * 4));
const bytes = map.getContext("2d");
map.width = columns;
map.height = ceil(file.length / columns);
let parts = tensors.filter(({ start }, i) => !i || start >= tensors[i - 1].end);
parts.unshift({ name: "header", start: 0, end: parts[0].start });
parts.at(-1).end = file.length - 4;
parts.push({ name: "checksum", start: file.length - 4, end: file.length });
if (parts[24])
  parts = parts.reduce((layers, { name, start, end }) => {
    const layer = name.replace(/\.[^.]*$/, ""); // the tensors of a layer together
    if (layers.at(-1)?.name == layer) layers.at(-1).end = end;
    else layers.push({ name: layer, start, end });
    return layers;
  }, []);
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

example(isDigits ? 3 : 10);
