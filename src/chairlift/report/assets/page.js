// Draws the runs that stand in this page. Names come from strangers: they are only ever set as text.
(() => {
  const { el, seconds, count, percent } = shared;
  const runs = JSON.parse(document.getElementById("data").textContent).runs;
  const LETTERS = ["A", "B"];
  const MARGIN = { left: 56, right: 14, top: 8, bottom: 24 };
  const DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3], [14, 4], [4, 2, 1, 2], [1, 2], [11, 2, 2, 2]];
  const MAX_OWNERS = 8;
  const RARE = ["refused", "not over at the end", "answers aborted", "answers too late", "answers failed", "Filler rows"];
  const whole = { begin: 0, end: Math.max(...runs.map((run) => run.duration_s)) || 1 };
  const view = { ...whole };
  const engines = runs.map(() => 0);
  const charts = [];
  let pending = false;
  let colors = {};

  // ---------------------------------------------------------------- small things

  const engineOf = (run) => runs[run].engines[engines[run]];
  const runName = (run) => (runs.length > 1 ? `${LETTERS[run]}: ${runs[run].name}` : runs[run].name);

  function readColors() {
    const style = getComputedStyle(document.documentElement);
    const names = ["back", "panel", "text", "faint", "line", "grid", "decode", "decode-2", "chunk", "prefill", "filler",
      "filler-line", "preempted", "ended-early", "waiting", "kept", "held", "run-0", "run-1", "mark",
      ...Array.from({ length: MAX_OWNERS }, (_, owner) => `owner-${owner}`)];
    colors = Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
    colors.hatch = hatch(colors.filler, colors["filler-line"], 1);
    colors.again = hatch(colors.chunk, colors.text, -1);
  }

  function hatch(back, line, slope) {
    const tile = el("canvas", { width: 6, height: 6 });
    const context = tile.getContext("2d");
    context.fillStyle = back;
    context.fillRect(0, 0, 6, 6);
    context.strokeStyle = line;
    context.lineWidth = 1.2;
    context.beginPath();
    for (const shift of [-6, 0, 6]) {
      context.moveTo(shift - 1, slope > 0 ? 7 : -1);
      context.lineTo(shift + 7, slope > 0 ? -1 : 7);
    }
    context.stroke();
    return context.createPattern(tile, "repeat");
  }

  function ticks(low, high, most) {
    const raw = (high - low) / Math.max(1, most);
    const unit = 10 ** Math.floor(Math.log10(raw));
    const step = unit * [1, 2, 5, 10].find((factor) => factor * unit >= raw * 0.999999);
    const found = [];
    for (let number = Math.ceil(low / step - 1e-9); number * step <= high + step * 1e-9; number++) found.push(number * step || 0);
    return { step, found };
  }

  function atMost(times, time) {
    let low = 0, high = times.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (times[middle] <= time) low = middle + 1; else high = middle;
    }
    return low - 1;
  }

  // ---------------------------------------------------------------- charts

  function redraw(all = false) {
    if (all) for (const chart of charts) chart.width = 0;
    if (pending) return;
    pending = true;
    requestAnimationFrame(() => {
      pending = false;
      for (const chart of charts) if (chart.isTime || chart.width !== chart.canvas.clientWidth) paint(chart);
      span.textContent = `${seconds(view.begin)} to ${seconds(view.end)}`;
      document.documentElement.dataset.drawn = "yes";
    });
  }

  function paint(chart) {
    const { canvas } = chart;
    const width = canvas.clientWidth, height = chart.height();
    if (!width) return;
    chart.width = width;
    const ratio = window.devicePixelRatio || 1;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.height = `${height}px`;
    }
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    context.font = '11px system-ui, "DejaVu Sans", sans-serif';
    const plot = { left: MARGIN.left, top: MARGIN.top, right: width - MARGIN.right, bottom: height - MARGIN.bottom };
    chart.plot = plot;
    chart.draw(context, plot);
  }

  function clipped(context, plot, draw) {
    context.save();
    context.beginPath();
    context.rect(plot.left, plot.top, plot.right - plot.left, plot.bottom - plot.top);
    context.clip();
    draw();
    context.restore();
  }

  function xScale(plot, range = view) {
    const factor = (plot.right - plot.left) / (range.end - range.begin);
    return (time) => plot.left + (time - range.begin) * factor;
  }
  function yScale(plot, most) {
    const factor = (plot.bottom - plot.top) / (most || 1);
    return (value) => plot.bottom - value * factor;
  }

  function timeAxis(context, plot) {
    const x = xScale(plot);
    const { step, found } = ticks(view.begin, view.end, (plot.right - plot.left) / 90);
    const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
    context.textAlign = "center";
    context.textBaseline = "top";
    for (const time of found) {
      const at = Math.round(x(time)) + 0.5;
      line(context, at, plot.top, at, plot.bottom, colors.grid);
      context.fillStyle = colors.faint;
      context.fillText(`${time.toFixed(digits)} s`, Math.min(at, plot.right - 12), plot.bottom + 6);
    }
  }

  function valueAxis(context, plot, most, name) {
    const y = yScale(plot, most);
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (const value of ticks(0, most, (plot.bottom - plot.top) / 34).found) {
      const at = Math.round(y(value)) + 0.5;
      line(context, plot.left, at, plot.right, at, colors.grid);
      context.fillStyle = colors.faint;
      context.fillText(name(value), plot.left - 6, at);
    }
  }

  function line(context, x1, y1, x2, y2, color, width = 1) {
    context.strokeStyle = color;
    context.lineWidth = width;
    context.beginPath();
    context.moveTo(x1, y1);
    context.lineTo(x2, y2);
    context.stroke();
  }

  // ---------------------------------------------------------------- slots

  const usedSlots = (engine) => engine.stays.slot.reduce((most, slot) => Math.max(most, slot + 1), 1);
  const slotRows = Math.max(...runs.flatMap((run) => run.engines.map(usedSlots)));
  const numSlots = Math.max(...runs.flatMap((run) => run.engines.map((engine) => engine.num_slots)));
  const rowHeight = Math.max(Math.min(22, Math.floor(560 / slotRows)), Math.min(3, 900 / slotRows));
  const bySlot = new Map();
  let hovered = null;

  function staysBySlot(engine) {
    let slots = bySlot.get(engine);
    if (!slots) {
      slots = Array.from({ length: engine.num_slots }, () => []);
      engine.stays.slot.forEach((slot, stay) => slots[slot] && slots[slot].push(stay));
      bySlot.set(engine, slots);
    }
    return slots;
  }
  const stayEnd = (stays, stay) => Math.max(stays.left[stay], stays.held_until[stay]);
  const isEarly = (why) => why === "aborted" || why === "deadline" || why === "error";

  function drawSlots(run) {
    return (context, plot) => {
      const engine = engineOf(run), { stays, chunks } = engine;
      const x = xScale(plot);
      const inset = rowHeight >= 6 ? 1 : 0;
      const thickness = Math.max(rowHeight - inset, 0.5);
      timeAxis(context, plot);
      slotNumbers(context, plot, Math.min(engine.num_slots, slotRows));
      const bar = (slot, begin, end, fill, least = 0.6) => {
        const left = x(begin), right = x(end);
        if (right < plot.left || left > plot.right) return;
        context.fillStyle = fill;
        context.fillRect(left, plot.top + slot * rowHeight, Math.max(right - left, least), thickness);
      };
      clipped(context, plot, () => {
        missing(context, plot, x, engine);
        const num = stays.slot.length;
        for (let stay = 0; stay < num; stay++) {
          if (stays.joined[stay] > view.end || stayEnd(stays, stay) < view.begin) continue;
          const from = stays.decodes_from[stay];
          const slot = stays.slot[stay], left = stays.left[stay];
          bar(slot, stays.joined[stay], from < 0 ? left : from, colors.prefill);
          if (from >= 0) bar(slot, from, left, stays.answer[stay] % 2 ? colors["decode-2"] : colors.decode);
          if (stays.held_until[stay] >= 0) bar(slot, left, stays.held_until[stay], colors.hatch);
        }
        chunks.stay.forEach((stay, chunk) => {
          const begin = chunks.begin[chunk], end = begin + chunks.seconds[chunk];
          if (end < view.begin || begin > view.end) return;
          bar(stays.slot[stay], begin, end, stays.again[stay] ? colors.again : colors.chunk);
        });
        for (let stay = 0; stay < num; stay++) {
          if (stays.joined[stay] > view.end || stayEnd(stays, stay) < view.begin) continue;
          staySigns(context, plot, x, engine, stay, thickness);
        }
        if (hovered && hovered.run === run) outline(context, plot, x, engine, thickness);
      });
      line(context, plot.left - 0.5, plot.top, plot.left - 0.5, plot.bottom, colors.line);
    };
  }

  function slotNumbers(context, plot, num) {
    context.textAlign = "right";
    context.textBaseline = "middle";
    context.fillStyle = colors.faint;
    const every = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096].find((n) => n * rowHeight >= 13) || 8192;
    for (let slot = 0; slot < num; slot += every) {
      context.fillText(`${slot}`, plot.left - 6, plot.top + (slot + 0.5) * rowHeight);
    }
  }

  // Times of which the page does not have every stay.
  function missing(context, plot, x, engine) {
    const end = runs.find((run) => run.engines.includes(engine)).duration_s;
    context.textAlign = "center";
    context.textBaseline = "top";
    for (const [from, to] of [[0, engine.stays_from], [engine.stays_until, end]]) {
      const left = Math.max(x(from), plot.left), right = Math.min(x(to), plot.right);
      if (right <= left) continue;
      context.fillStyle = colors.grid;
      context.fillRect(left, plot.top, right - left, plot.bottom - plot.top);
      context.fillStyle = colors.faint;
      if (right - left > 110) context.fillText("not in this page", (left + right) / 2, plot.top + 6);
    }
  }

  function staySigns(context, plot, x, engine, stay, thickness) {
    const { stays, answers } = engine;
    const top = plot.top + stays.slot[stay] * rowHeight, middle = top + thickness / 2;
    const left = x(stays.joined[stay]), right = x(stays.left[stay]), why = stays.why[stay];
    if (right - left > 4) {
      context.fillStyle = colors.panel;
      context.fillRect(right - 1, top, 1, thickness);
    }
    if (why === "preempted" || isEarly(why)) {
      context.fillStyle = context.strokeStyle = why === "preempted" ? colors.preempted : colors["ended-early"];
      if (rowHeight < 6) {
        context.fillRect(right - 2, top, 2.5, thickness);
      } else if (why === "preempted") {
        const size = Math.min(thickness / 2, 6);
        context.beginPath();
        context.moveTo(right, middle - size);
        context.lineTo(right - 1.3 * size, middle);
        context.lineTo(right, middle + size);
        context.fill();
        context.fillRect(right - 1, top, 2, thickness);
      } else {
        cross(context, right - 4, middle, Math.min(thickness / 2 - 1, 4));
      }
    }
    if (rowHeight >= 11) {
      const text = label(answers, stays.answer[stay]);
      const begin = Math.max(left, plot.left);
      const room = Math.min(right, plot.right) - begin - 12;
      if (room > 14 && context.measureText(text).width < room) {
        context.fillStyle = colors.text;
        context.strokeStyle = colors.back;
        context.lineWidth = 3;
        context.lineJoin = "round";
        context.textAlign = "left";
        context.textBaseline = "middle";
        context.globalAlpha = 0.7;
        context.strokeText(text, begin + 4, middle + 0.5);
        context.globalAlpha = 1;
        context.fillText(text, begin + 4, middle + 0.5);
      }
    }
  }

  function cross(context, x, y, size) {
    context.lineWidth = 2;
    context.beginPath();
    context.moveTo(x - size, y - size);
    context.lineTo(x + size, y + size);
    context.moveTo(x - size, y + size);
    context.lineTo(x + size, y - size);
    context.stroke();
  }

  const label = (answers, answer) =>
    (answers.label[answer] || `${answers.id[answer]}`) + (answers.choice[answer] ? `.${answers.choice[answer]}` : "");

  function outline(context, plot, x, engine, thickness) {
    const { stays, answers } = engine;
    context.strokeStyle = colors.mark;
    let first = -1;
    stays.answer.forEach((answer, stay) => {
      if (answer !== hovered.answer) return;
      if (first < 0) first = stay;
      const left = x(stays.joined[stay]), right = x(stayEnd(stays, stay));
      context.lineWidth = 1.5;
      context.strokeRect(left, plot.top + stays.slot[stay] * rowHeight, Math.max(right - left, 2), thickness);
    });
    if (first < 0) return;
    const y = plot.top + stays.slot[first] * rowHeight + thickness / 2;
    context.setLineDash([3, 3]);
    line(context, x(answers.arrival[hovered.answer]), y, x(stays.joined[first]), y, colors.mark, 1.5);
    context.setLineDash([]);
  }

  function stayAt(run, chart, point) {
    const engine = engineOf(run);
    const slot = Math.floor((point.y - chart.plot.top) / rowHeight);
    const list = staysBySlot(engine)[slot];
    if (!list) return null;
    const { stays } = engine;
    const reach = 2 * (view.end - view.begin) / (chart.plot.right - chart.plot.left);
    let best = null, near = Infinity;
    for (const stay of list) {
      if (stays.joined[stay] > point.time + reach) break;
      const distance = Math.max(stays.joined[stay] - point.time, point.time - stayEnd(stays, stay), 0);
      if (distance <= reach && distance <= near) { best = stay; near = distance; }
    }
    return best;
  }

  function slotTip(run) {
    return (chart, point) => {
      const stay = stayAt(run, chart, point);
      const before = hovered && hovered.answer;
      const engine = engineOf(run);
      hovered = stay === null ? null : { run, answer: engine.stays.answer[stay] };
      if ((hovered && hovered.answer) !== before) redraw();
      return stay === null ? null : stayLines(run, engine, stay, point.time);
    };
  }

  function stayLines(run, engine, stay, time) {
    const { stays, answers } = engine, answer = stays.answer[stay];
    const owner = runs[run].groups[answers.owner[answer]].name;
    const choice = answers.choice[answer] ? `, choice ${answers.choice[answer]}` : "";
    const output = answers.output_tokens[answer];
    const lines = [
      `Request ${answers.label[answer] || answers.id[answer]}${choice}${owner ? ` of ${owner}` : ""}`,
      `Slot ${stays.slot[stay]} from ${seconds(stays.joined[stay])} to ${seconds(stays.left[stay])} (${stays.why[stay]})`,
      `${count(answers.prompt_tokens[answer])} prompt tokens, ${output < 0 ? "not over" : `${count(output)} tokens generated`}` +
        (answers.priority[answer] ? `, priority ${answers.priority[answer]}` : ""),
      `Arrived at ${seconds(answers.arrival[answer])}. ${answers.sentence[answer]}`,
      `Here: ${phase(engine, stay, time)}`,
    ];
    return lines;
  }

  function phase(engine, stay, time) {
    const { stays, chunks } = engine;
    if (time >= stays.left[stay] && stays.held_until[stay] >= 0) return "a filler, computed until its batch is over";
    for (let chunk = atMost(chunks.stay, stay); chunk >= 0 && chunks.stay[chunk] === stay; chunk--) {
      const begin = chunks.begin[chunk];
      if (begin <= time && time <= begin + chunks.seconds[chunk]) {
        const start = chunks.start[chunk];
        const again = stays.again[stay] ? ", computed again" : "";
        return `a chunk of ${count(chunks.count[chunk])} tokens from position ${count(start)}${again}, ${seconds(chunks.seconds[chunk])}`;
      }
    }
    const from = stays.decodes_from[stay];
    return from >= 0 && time >= from ? "decoding" : "waiting for its next chunk";
  }

  // ---------------------------------------------------------------- series

  const most = (values) => values.reduce((a, b) => Math.max(a, b), 0);
  const overEngines = (measure) => Math.max(1e-9, ...runs.flatMap((run) => run.engines.map(measure)));
  const isCoarse = runs.some((run) => run.engines.some((engine) => engine.steps.width > 1));
  const mostRows = Math.max(1, overEngines((engine) => most(engine.steps.max_rows)));
  const scales = {
    waiting: Math.max(1, 1.08 * overEngines((engine) => engine.max_waiting)),
    rows: 1.08 * (numSlots <= 3 * mostRows ? numSlots : mostRows),
    cache: Math.min(1, Math.max(0.001, 1.08 * overEngines((engine) =>
      most(engine.steps.held.map((held, step) => Math.max(held + engine.steps.kept[step], engine.steps.max_held[step]))) / engine.num_blocks))),
  };

  // Values that share a pixel become one stroke from the least to the most of them.
  function stepPath(context, x, y, times, value, end, base) {
    context.beginPath();
    const first = Math.max(0, atMost(times, view.begin));
    let at = x(times[first] ?? 0), low = Infinity, high = -Infinity;
    context.moveTo(at, base);
    for (let i = first; i < times.length && times[i] <= view.end; i++) {
      const now = value(i), next = x(i + 1 < times.length ? times[i + 1] : end);
      low = Math.min(low, now);
      high = Math.max(high, now);
      if (next - at < 0.7 && i + 1 < times.length) continue;
      if (low < high) {
        context.lineTo(at, y(low));
        context.lineTo(at, y(high));
      }
      context.lineTo(at, y(now));
      context.lineTo(next, y(now));
      at = next;
      low = Infinity;
      high = -Infinity;
    }
    context.lineTo(at, base);
  }

  function drawWaiting(run) {
    return (context, plot) => {
      const { waiting } = engineOf(run);
      const x = xScale(plot), y = yScale(plot, scales.waiting), end = runs[run].duration_s;
      timeAxis(context, plot);
      valueAxis(context, plot, scales.waiting, count);
      clipped(context, plot, () => {
        const fill = (values, alpha) => {
          context.globalAlpha = alpha;
          context.fillStyle = colors.waiting;
          stepPath(context, x, y, waiting.time, (i) => values[i], end, plot.bottom);
          context.fill();
          context.globalAlpha = 1;
        };
        if (waiting.high) fill(waiting.high, 0.3);
        fill(waiting.value, waiting.high ? 0.6 : 0.45);
        context.strokeStyle = colors.waiting;
        context.lineWidth = 1.3;
        stepPath(context, x, y, waiting.time, (i) => waiting.value[i], end, plot.bottom);
        context.stroke();
      });
    };
  }

  function waitingTip(run) {
    return (chart, point) => {
      const { waiting } = engineOf(run);
      const i = atMost(waiting.time, point.time);
      if (i < 0 || point.time > runs[run].duration_s) return null;
      const range = waiting.high ? ` on average, ${count(waiting.low[i])} to ${count(waiting.high[i])}` : "";
      return [seconds(point.time), `${count(waiting.value[i])} waiting${range}`];
    };
  }

  // A step counts from its beginning to its end; between steps there is nothing in the batch. A pixel shows the mean
  // of what is in it.
  function areas(context, plot, x, y, steps, layers) {
    const num = Math.ceil(plot.right - plot.left);
    const base = new Float64Array(num);
    for (const [fill, values] of layers) {
      const sums = new Float64Array(num);
      for (let i = Math.max(0, atMost(steps.begin, view.begin)); i < steps.begin.length && steps.begin[i] <= view.end; i++) {
        const height = values[i] * steps.busy[i];
        if (!height) continue;
        const left = Math.max(x(steps.begin[i]) - plot.left, 0), right = Math.min(x(steps.end[i]) - plot.left, num);
        for (let column = Math.floor(left); column < right; column++) {
          sums[column] += height * (Math.min(right, column + 1) - Math.max(left, column));
        }
      }
      context.fillStyle = fill;
      for (let column = 0; column < num; column++) {
        if (!sums[column]) continue;
        const top = y(base[column] + sums[column]);
        context.fillRect(plot.left + column, top, 1, y(base[column]) - top);
        base[column] += sums[column];
      }
    }
  }

  function drawRows(run) {
    return (context, plot) => {
      const engine = engineOf(run), { steps } = engine;
      const x = xScale(plot), y = yScale(plot, scales.rows);
      timeAxis(context, plot);
      valueAxis(context, plot, scales.rows, count);
      clipped(context, plot, () => {
        areas(context, plot, x, y, steps, [
          [colors.decode, steps.decodes], [colors.chunk, steps.chunks], [colors.hatch, steps.fillers],
        ]);
        if (steps.width > 1) {
          context.strokeStyle = colors.faint;
          context.lineWidth = 1;
          stepPath(context, x, y, steps.begin, (i) => steps.max_rows[i], runs[run].duration_s, plot.bottom);
          context.stroke();
        }
        context.setLineDash([5, 4]);
        line(context, plot.left, y(engine.num_slots), plot.right, y(engine.num_slots), colors.text);
        context.setLineDash([]);
      });
    };
  }

  function rowsTip(run) {
    return (chart, point) => {
      const { steps } = engineOf(run);
      const i = atMost(steps.begin, point.time);
      if (i < 0 || point.time > steps.end[i]) return [seconds(point.time), "no step"];
      const many = steps.width > 1 ? `means of ${steps.width} steps, at most ${count(steps.max_rows[i])} rows` : `a step of ${seconds(steps.end[i] - steps.begin[i])}`;
      return [
        `${seconds(point.time)}: ${many}`,
        `${count(steps.decodes[i])} decoding, ${count(steps.chunks[i])} prefilling, ${count(steps.fillers[i])} fillers`,
        `${count(steps.tokens[i])} tokens, ${count(steps.chunk_tokens[i])} of them in chunks`,
      ];
    };
  }

  function drawCache(run) {
    return (context, plot) => {
      const { steps, num_blocks: blocks } = engineOf(run);
      const x = xScale(plot), y = yScale(plot, scales.cache), end = runs[run].duration_s;
      timeAxis(context, plot);
      valueAxis(context, plot, scales.cache, (value) => `${+(100 * value).toPrecision(3)} %`);
      clipped(context, plot, () => {
        const fill = (value, color) => {
          context.fillStyle = color;
          stepPath(context, x, y, steps.end, value, end, plot.bottom);
          context.fill();
        };
        fill((i) => (steps.held[i] + steps.kept[i]) / blocks, colors.kept);
        fill((i) => steps.held[i] / blocks, colors.held);
        if (steps.width > 1) {
          context.strokeStyle = colors.text;
          context.lineWidth = 1;
          stepPath(context, x, y, steps.end, (i) => steps.max_held[i] / blocks, end, plot.bottom);
          context.stroke();
        }
      });
    };
  }

  function cacheTip(run) {
    return (chart, point) => {
      const { steps, num_blocks: blocks, block_size: size } = engineOf(run);
      const i = atMost(steps.end, point.time);
      if (i < 0) return null;
      return [
        seconds(point.time),
        `${count(steps.held[i])} of ${count(blocks)} blocks in use (${percent(steps.held[i] / blocks)}), ${count(size)} tokens each`,
        `${count(steps.kept[i])} more can be found again (${percent(steps.kept[i] / blocks)})`,
      ];
    };
  }

  // ---------------------------------------------------------------- service

  function ownersOf(engine, run) {
    const { service } = engine.curves;
    const order = service.map((_, owner) => owner);
    const final = (owner) => service[owner][service[owner].length - 1] || 0;
    order.sort((a, b) => final(b) - final(a) || a - b);
    const shown = order.slice(0, order.length > MAX_OWNERS ? MAX_OWNERS - 1 : MAX_OWNERS);
    const lines = shown.map((owner) => ({ name: runs[run].groups[owner].name || "(no name)", values: service[owner] }));
    const rest = order.slice(shown.length);
    if (rest.length) {
      lines.push({ name: `${rest.length} others`, values: service[rest[0]].map((_, i) => rest.reduce((sum, owner) => sum + service[owner][i], 0)) });
    }
    return lines;
  }
  const ownerLines = runs.map((run, number) => run.engines.map((engine) => ownersOf(engine, number)));
  const ownerNames = [...new Set(ownerLines.flat(2).map((one) => one.name))];
  const ownerStyle = (name) => {
    const place = ownerNames.indexOf(name);
    return { color: colors[`owner-${place % MAX_OWNERS}`], dash: DASHES[(place + Math.floor(place / MAX_OWNERS)) % DASHES.length] };
  };
  const mostService = Math.max(1, 1.05 * Math.max(0, ...ownerLines.flat(2).map((one) => most(one.values))));

  function drawService(run) {
    return (context, plot) => {
      const { curves } = engineOf(run);
      const x = xScale(plot), y = yScale(plot, mostService);
      timeAxis(context, plot);
      valueAxis(context, plot, mostService, (value) => (value >= 1e6 ? `${+(value / 1e6).toPrecision(3)} M` : value >= 1e3 ? `${+(value / 1e3).toPrecision(3)} k` : count(value)));
      clipped(context, plot, () => {
        for (const { name, values } of ownerLines[run][engines[run]]) {
          const style = ownerStyle(name);
          context.strokeStyle = style.color;
          context.lineWidth = 2;
          context.setLineDash(style.dash);
          context.beginPath();
          context.moveTo(x(0), y(0));
          values.forEach((value, i) => context.lineTo(x(curves.time[i]), y(value)));
          context.stroke();
        }
        context.setLineDash([]);
      });
    };
  }

  function serviceTip(run) {
    return (chart, point) => {
      const { curves } = engineOf(run);
      const i = atMost(curves.time, point.time);
      if (i < 0) return null;
      const lines = ownerLines[run][engines[run]];
      return [seconds(curves.time[i]), ...lines.map(({ name, values }) => `${name}: ${count(values[i])}`)];
    };
  }

  // ---------------------------------------------------------------- latencies

  const LATENCIES = [["ttft", "Time to first token"], ["itl", "Inter-token latency"], ["e2e", "End to end"], ["queue", "Waiting to join"]];

  function latencyRange(key) {
    const values = runs.flatMap((run) => (run.latencies[key] ? run.latencies[key].value : [])).filter((value) => value > 0);
    if (!values.length) return null;
    const high = Math.max(...values) * 1.15;
    return { begin: Math.max(Math.min(...values) / 1.15, high / 1e5), end: high };
  }

  function drawLatency(key) {
    const range = latencyRange(key);
    return (context, plot) => {
      valueAxis(context, plot, 1, (share) => `${Math.round(100 * share)} %`);
      if (!range) return;
      const logs = { begin: Math.log10(range.begin), end: Math.log10(range.end) };
      const scale = xScale(plot, logs);
      const x = (value) => scale(Math.log10(Math.max(value, range.begin)));
      const y = yScale(plot, 1);
      logAxis(context, plot, logs, scale);
      runs.forEach((run, number) => {
        const found = run.latencies[key];
        if (!found) return;
        const color = colors[`run-${number}`];
        clipped(context, plot, () => {
          context.strokeStyle = color;
          context.lineWidth = 2;
          context.setLineDash(number ? [6, 4] : []);
          context.beginPath();
          context.moveTo(x(found.value[0]), y(0));
          found.value.forEach((value, i) => {
            context.lineTo(x(value), y(i ? found.share[i - 1] : 0));
            context.lineTo(x(value), y(found.share[i]));
          });
          context.lineTo(plot.right, y(1));
          context.stroke();
          context.setLineDash([2, 3]);
          line(context, x(found.p50), y(0.5), x(found.p50), plot.bottom, color);
          line(context, x(found.p99), y(0.99), x(found.p99), plot.bottom, color);
          context.setLineDash([]);
        });
        context.fillStyle = color;
        dot(context, x(found.p50), y(0.5), 4, number);
        dot(context, x(found.p99), y(0.99), 4, number);
      });
      runs.forEach((run, number) => {
        const found = run.latencies[key];
        if (!found) return;
        latencyLabel(context, plot, x(found.p50), y(0.5), `p50 ${seconds(found.p50)}`, number);
        latencyLabel(context, plot, x(found.p99), y(0.99), `p99 ${seconds(found.p99)}`, number);
      });
    };
  }

  function dot(context, x, y, size, number) {
    context.beginPath();
    if (number) context.rect(x - size, y - size, 2 * size, 2 * size);
    else context.arc(x, y, size, 0, 2 * Math.PI);
    context.fill();
  }

  function latencyLabel(context, plot, x, y, text, number) {
    const width = context.measureText(text).width + 8;
    const left = x + width + 8 > plot.right ? x - width - 7 : x + 7;
    const top = Math.max(y + (number ? 5 : -19), plot.top) + (y < plot.top + 20 ? (number ? 22 : 4) : 0);
    context.fillStyle = colors.panel;
    context.globalAlpha = 0.85;
    context.fillRect(left, top, width, 15);
    context.globalAlpha = 1;
    context.fillStyle = colors[`run-${number}`];
    context.textAlign = "left";
    context.textBaseline = "middle";
    context.fillText(text, left + 4, top + 8);
  }

  function logAxis(context, plot, logs, scale) {
    context.textAlign = "center";
    context.textBaseline = "top";
    let before = -Infinity;
    const factors = logs.end - logs.begin > 2.5 ? [1] : logs.end - logs.begin > 1.2 ? [1, 3] : [1, 1.5, 2, 3, 5, 7];
    for (let power = Math.floor(logs.begin); power <= Math.ceil(logs.end); power++) {
      for (const factor of factors) {
        const value = factor * 10 ** power, at = Math.round(scale(Math.log10(value))) + 0.5;
        if (at < plot.left || at > plot.right) continue;
        line(context, at, plot.top, at, plot.bottom, colors.grid);
        const text = seconds(value), half = context.measureText(text).width / 2;
        if (at - half < before + 8 || at + half > plot.right + MARGIN.right) continue;
        context.fillStyle = colors.faint;
        context.fillText(text, at, plot.bottom + 6);
        before = at + half;
      }
    }
  }

  function latencyTip(key) {
    const range = latencyRange(key);
    return (chart, point) => {
      if (!range) return null;
      const share = (point.x - chart.plot.left) / (chart.plot.right - chart.plot.left);
      const value = range.begin * (range.end / range.begin) ** share;
      return [`at most ${seconds(value)}`, ...runs.flatMap((run, number) => {
        const found = run.latencies[key];
        if (!found) return [];
        const i = atMost(found.value, value);
        return [`${runName(number)}: ${percent(i < 0 ? 0 : found.share[i])} of ${count(found.count)}`];
      })];
    };
  }

  // ---------------------------------------------------------------- looking closer

  function setView(begin, end) {
    const least = Math.max(1e-5, whole.end * 1e-7);
    const width = Math.min(Math.max(end - begin, least), whole.end);
    const left = Math.min(Math.max(begin, 0), whole.end - width);
    view.begin = left;
    view.end = left + width;
    redraw();
  }
  function zoom(factor, around = (view.begin + view.end) / 2) {
    setView(around - (around - view.begin) * factor, around + (view.end - around) * factor);
  }
  const pan = (share) => setView(view.begin + share * (view.end - view.begin), view.end + share * (view.end - view.begin));

  function pointOf(chart, event) {
    const box = chart.canvas.getBoundingClientRect();
    const x = event.clientX - box.left, y = event.clientY - box.top;
    const share = (x - chart.plot.left) / (chart.plot.right - chart.plot.left);
    return { x, y, share, time: view.begin + share * (view.end - view.begin) };
  }
  const isInside = (point) => point.share >= 0 && point.share <= 1;

  function listen(chart) {
    const { canvas } = chart;
    canvas.addEventListener("pointermove", (event) => {
      const point = pointOf(chart, event);
      if (chart.drag) return drag(chart, point);
      showTip(isInside(point) ? chart.tip(chart, point) : null, event);
    });
    canvas.addEventListener("pointerleave", () => {
      showTip(null);
      if (hovered) { hovered = null; redraw(); }
    });
    if (!chart.isTime) return;
    canvas.tabIndex = 0;
    canvas.addEventListener("wheel", (event) => {
      const point = pointOf(chart, event);
      if (!isInside(point)) return;
      event.preventDefault();
      const unit = event.deltaMode === 1 ? 30 : 1;
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan((unit * event.deltaX) / 1500);
      else zoom(Math.exp(unit * event.deltaY * 0.0016), point.time);
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      const point = pointOf(chart, event);
      if (event.button || !isInside(point)) return;
      canvas.setPointerCapture(event.pointerId);
      chart.drag = { from: point, begin: view.begin, end: view.end, pans: event.shiftKey };
      showTip(null);
    });
    canvas.addEventListener("pointerup", (event) => {
      const { drag: one } = chart;
      chart.drag = null;
      if (!one || one.pans) return;
      const point = pointOf(chart, event);
      if (Math.abs(point.x - one.from.x) > 5) setView(Math.min(one.from.time, point.time), Math.max(one.from.time, point.time));
      redraw();
    });
    canvas.addEventListener("pointercancel", () => { chart.drag = null; redraw(); });
    canvas.addEventListener("dblclick", () => setView(0, whole.end));
    canvas.addEventListener("keydown", (event) => {
      const acts = { ArrowLeft: () => pan(-0.2), ArrowRight: () => pan(0.2), "+": () => zoom(0.6), "=": () => zoom(0.6), "-": () => zoom(1 / 0.6), 0: () => setView(0, whole.end) };
      if (event.ctrlKey || event.metaKey || event.altKey || !acts[event.key]) return;
      event.preventDefault();
      acts[event.key]();
    });
  }

  function drag(chart, point) {
    const { from, begin, end, pans } = chart.drag;
    if (pans) {
      const shift = (point.share - from.share) * (end - begin);
      setView(begin - shift, end - shift);
      return;
    }
    paint(chart);
    const context = chart.canvas.getContext("2d");
    context.globalAlpha = 0.25;
    context.fillStyle = colors.mark;
    context.fillRect(Math.min(from.x, point.x), chart.plot.top, Math.abs(point.x - from.x), chart.plot.bottom - chart.plot.top);
    context.globalAlpha = 1;
  }

  function showTip(lines, event) {
    tip.hidden = !lines;
    if (!lines) return;
    tip.replaceChildren(...lines.map((text) => el("div", { textContent: text })));
    const box = tip.getBoundingClientRect();
    const left = event.clientX + 16 + box.width > innerWidth ? event.clientX - box.width - 12 : event.clientX + 16;
    const top = event.clientY + 16 + box.height > innerHeight ? event.clientY - box.height - 12 : event.clientY + 16;
    tip.style.left = `${Math.max(4, left)}px`;
    tip.style.top = `${Math.max(4, top)}px`;
  }

  // ---------------------------------------------------------------- the page

  const tip = el("div", { id: "tip", hidden: true });
  const span = el("span", {});

  function chartPanel(title, name, height, draw, tipOf, isTime) {
    const canvas = el("canvas", { className: isTime ? "time" : "" });
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", name);
    const chart = { canvas, height, draw, tip: tipOf, isTime, drag: null, plot: null };
    charts.push(chart);
    return el("div", { className: "panel" }, ...(title ? [el("h3", { textContent: title })] : []), canvas);
  }

  function perRun(name, height, draw, tipOf) {
    const panels = runs.map((_, run) =>
      chartPanel(runs.length > 1 ? runName(run) : "", `${name}, ${runName(run)}`, height, draw(run), tipOf(run), true));
    return el("div", { className: runs.length > 1 ? "panels two" : "panels" }, ...panels);
  }

  function section(title, text, ...children) {
    return el("section", {}, el("h2", { textContent: title }), ...(text ? [el("p", { textContent: text })] : []), ...children);
  }

  function legend(entries) {
    return el("div", { className: "legend" }, ...entries.map(([name, draw]) => {
      const canvas = el("canvas", {});
      charts.push({ canvas, height: () => 14, draw: (context) => draw(context, 26, 14) });
      return el("span", {}, canvas, name);
    }));
  }
  const block = (color) => (context, width, height) => {
    context.fillStyle = colors[color];
    context.fillRect(0, 1, width, height - 2);
  };
  const stroke = (style) => (context, width, height) => {
    const { color, dash } = style();
    context.setLineDash(dash);
    line(context, 0, height / 2, width, height / 2, color, 2.2);
    context.setLineDash([]);
  };
  const preemption = (context, width, height) => {
    block("decode")(context, width, height);
    context.fillStyle = colors.preempted;
    context.beginPath();
    context.moveTo(width, 1);
    context.lineTo(width - 9, height / 2);
    context.lineTo(width, height - 1);
    context.fill();
  };
  const early = (context, width, height) => {
    block("decode")(context, width, height);
    context.strokeStyle = colors["ended-early"];
    cross(context, width - 6, height / 2, 4);
  };

  function table(head, rows, named = 1) {
    const row = (cells, tag) => el("tr", {}, ...cells.map((text, i) => el(tag, { textContent: text, className: i < named ? "name" : "" })));
    return el("div", { className: "wide" }, el("table", {}, ...(head ? [el("thead", {}, row(head, "th"))] : []), el("tbody", {}, ...rows.map((cells) => row(cells, "td")))));
  }

  function summary() {
    const whole_s = (run) => run.duration_s || 1e-9;
    const latency = (key, figure) => (run) => (run.latencies[key] ? run.latencies[key][figure] : null);
    const sum = (run, measure) => run.engines.reduce((total, engine) => total + measure(engine), 0);
    const slotUse = (run) => {
      const slotSteps = sum(run, (engine) => engine.num_steps * engine.num_slots);
      return slotSteps ? sum(run, (engine) => engine.slot_use * engine.num_steps * engine.num_slots) / slotSteps : 0;
    };
    const groups = [[
      ["Requests", (run) => run.requests, count],
      ["completed", (run) => run.completed, count],
      ["refused", (run) => run.refused, count],
      ["not over at the end", (run) => run.unfinished, count],
      ["answers aborted", (run) => run.reasons.abort || 0, count],
      ["answers too late", (run) => run.reasons.deadline || 0, count],
      ["answers failed", (run) => run.reasons.error || 0, count],
      ["Time", (run) => run.duration_s, seconds],
      ["Output tokens per second, of completed requests", (run) => run.output_tokens / whole_s(run), count],
      ["Prompt tokens from the cache", (run) => (run.prompt_tokens ? run.cached_tokens / run.prompt_tokens : 0), percent],
      ["Preemptions", (run) => run.preemptions, count],
    ], [
      ["Steps", (run) => sum(run, (engine) => engine.num_steps), count],
      ["Engines busy", (run) => sum(run, (engine) => engine.busy_s) / whole_s(run) / run.engines.length, percent],
      ["Slots used in steps", slotUse, percent],
      ["Filler rows", (run) => sum(run, (engine) => engine.num_filler_rows), count],
      ["Most waiting", (run) => Math.max(...run.engines.map((engine) => engine.max_waiting)), count],
      ["Most of the cache in use", (run) => Math.max(...run.engines.map((engine) => engine.max_held_blocks / engine.num_blocks)), percent],
    ], [
      ...["ttft", "itl", "e2e"].flatMap((key) => ["p50", "p99"].map((figure) =>
        [`${{ ttft: "Time to first token", itl: "Inter-token latency", e2e: "End to end" }[key]}, ${figure}`, latency(key, figure), seconds])),
    ]];
    const head = runs.length > 1 ? ["", "A", "B", "B / A"] : null;
    const isTold = ([name, measure]) => !RARE.includes(name) || runs.some(measure);
    return el("div", { className: "summary" }, ...groups.map((rows) => table(head, rows.filter(isTold).map(([name, measure, write]) => {
      const values = runs.map(measure);
      const shown = values.map((value) => (value === null ? "–" : write(value)));
      if (runs.length > 1) shown.push(values[0] && values[1] !== null ? `${(values[1] / values[0]).toFixed(2)} ×` : "");
      return [name, ...shown];
    }))));
  }

  function toolbar() {
    const button = (text, name, act) => {
      const node = el("button", { type: "button", textContent: text, title: name, onclick: act });
      node.setAttribute("aria-label", name);
      return node;
    };
    const bar = el("div", { className: "bar tools" },
      button("−", "show more time", () => zoom(1 / 0.6)), button("+", "look closer", () => zoom(0.6)),
      button("◀", "earlier", () => pan(-0.3)), button("▶", "later", () => pan(0.3)),
      button("Whole run", "whole run", () => setView(0, whole.end)), span);
    runs.forEach((run, number) => {
      if (run.engines.length < 2) return;
      const select = el("select", { onchange: () => { engines[number] = select.selectedIndex; hovered = null; redraw(); } });
      select.setAttribute("aria-label", `engine of ${runName(number)}`);
      for (const engine of run.engines) select.append(el("option", { textContent: `${engine.name} (${count(engine.num_steps)} steps)` }));
      bar.append(el("label", {}, runs.length > 1 ? `${LETTERS[number]}: ` : "Engine: ", select));
    });
    return bar;
  }

  function latencySection() {
    const panels = LATENCIES.filter(([key]) => runs.some((run) => run.latencies[key])).map(([key, name]) => {
      const panel = chartPanel(name, name, () => 230, drawLatency(key), latencyTip(key), false);
      const rows = runs.flatMap((run, number) => {
        const found = run.latencies[key];
        return found ? [[runs.length > 1 ? LETTERS[number] : "", count(found.count), ...["mean", "p50", "p90", "p99", "most"].map((figure) => seconds(found[figure]))]] : [];
      });
      panel.append(table(["", "values", "mean", "p50", "p90", "p99", "most"], rows, 0));
      return panel;
    });
    const entries = runs.map((_, number) => [runName(number), stroke(() => ({ color: colors[`run-${number}`], dash: number ? [6, 4] : [] }))]);
    return section("Latencies", "What share of requests (of gaps between tokens) took at most so long. Only requests that came to their end count; gaps are those of all answers.",
      ...(runs.length > 1 ? [legend(entries)] : []), el("div", { className: "panels small" }, ...panels));
  }

  function serviceSection() {
    const { input_weight: input, output_weight: output } = runs[0].engines[0].curves;
    const text = `Tokens computed for each tenant up to each time: ${input} for a prompt token, ${output} for one generated, as fair scheduling charges them. In the table, tokens of completed requests.`;
    const entries = ownerNames.map((name) => [name, stroke(() => ownerStyle(name))]);
    const figure = (found, name) => (found ? seconds(found[name]) : "–");
    const rows = runs.flatMap((run, number) => run.groups.map((group) => [
      ...(runs.length > 1 ? [LETTERS[number]] : []), group.name || "(no name)", count(group.requests), count(group.completed), count(group.prompt_tokens),
      count(group.cached_tokens), count(group.output_tokens), figure(group.ttft, "p50"), figure(group.ttft, "p99"), figure(group.e2e, "p50"), figure(group.e2e, "p99"),
    ]));
    const head = [...(runs.length > 1 ? ["run"] : []), "tenant", "requests", "completed", "prompt", "cached", "generated", "TTFT p50", "TTFT p99", "E2E p50", "E2E p99"];
    return section("Service by tenant", text, legend(entries), perRun("Service by tenant", () => 220, drawService, serviceTip), table(head, rows, runs.length > 1 ? 2 : 1));
  }

  function build() {
    const title = runs.length > 1 ? "Two runs side by side" : runs[0].name;
    document.title = `${runs.map((run) => run.name).join(" | ")} – Chairlift report`;
    const main = document.getElementById("report");
    main.append(
      el("h1", { textContent: title }),
      el("p", { textContent: runs.map((run, number) => `${runName(number)}: ${run.source}`).join("; ") }),
      summary(), toolbar(),
      section("Slots", "A line for each slot, time to the right. Turn the wheel to look closer, drag over a time to see just that, Shift and drag to move, double-click for everything. Point at a bar to read who it is and why it waited." +
        (slotRows < numSlots ? ` Slots from ${slotRows} on are not taken in what is shown.` : ""),
        legend([
          ["prompt chunk", block("chunk")], ["chunk computed again after a preemption", block("again")],
          ["between chunks", block("prefill")], ["decoding (two shades for neighbours)", block("decode")],
          ["filler of a held batch", block("hatch")], ["preempted", preemption], ["aborted, too late or failed", early],
        ]),
        perRun("Slots over time", () => slotRows * rowHeight + MARGIN.top + MARGIN.bottom, drawSlots, slotTip)),
      section("Waiting", "How many answers wait for a slot, preempted ones as well.", perRun("Queue length", () => 150, drawWaiting, waitingTip)),
      section("Batch", `Rows of each step${numSlots <= 3 * mostRows ? "; the dashed line is the number of slots" : `, of ${count(numSlots)} slots`}${isCoarse ? "; the thin line is the most rows of any step" : ""}.`,
        legend([["decoding", block("decode")], ["prefilling", block("chunk")], ["fillers", block("hatch")]]),
        perRun("Batch occupancy", () => 170, drawRows, rowsTip)),
      section("Cache", `Share of the blocks of the key/value cache${isCoarse ? "; the thin line is the most after any step" : ""}.`,
        legend([["in use", block("held")], ["free, content can be found again", block("kept")]]),
        perRun("Cache use", () => 150, drawCache, cacheTip)),
      latencySection(), serviceSection());
    const notes = runs.flatMap((run, number) => run.notes.map((note) => (runs.length > 1 ? `${LETTERS[number]}: ${note}` : note)));
    if (notes.length) main.append(section("Notes", "", el("ul", {}, ...notes.map((note) => el("li", { textContent: note })))));
    document.body.append(tip);
  }

  readColors();
  build();
  for (const chart of charts) if (chart.tip) listen(chart);
  new ResizeObserver(() => redraw()).observe(document.getElementById("report"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readColors(); redraw(true); });
  const asked = /^#t=([0-9.]+),([0-9.]+)$/.exec(location.hash);
  if (asked) setView(Number(asked[1]), Number(asked[2]));
  redraw();
})();
